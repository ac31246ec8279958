"""Sending bytes that agents made: whole or by range, and never in a form that a browser would run."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

CHUNK: Final = 4 * 1024 * 1024

Read = Callable[[int, int], Awaitable[bytes]]
"""``(start, length)`` to bytes."""

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

CONTENT_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    206: {
        "description": "The bytes of the range.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Blob:
    name: str
    size: int
    digest: str
    """SHA-256; the ETag."""
    text: bool
    """Whether it may be shown as plain text."""


async def content_response(blob: Blob, read: Read, range_: str | None) -> Response:
    """200 with all of it, or 206 with one range. Several ranges, or what is no range at all, give the whole (RFC 9110)."""
    name = "".join(character if character.isprintable() else "_" for character in blob.name.rsplit("/", 1)[-1])
    safe = re.sub(r'[^A-Za-z0-9._ -]|"', "_", name) or "content"
    headers = {
        "Content-Disposition": f"attachment; filename=\"{safe}\"; filename*=UTF-8''{quote(name, safe='')}",
        "Accept-Ranges": "bytes",
        "ETag": f'"{blob.digest}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    media_type = "text/plain; charset=utf-8" if blob.text else "application/octet-stream"
    wanted = _range(range_, blob.size)
    if wanted is None:
        start, length, status = 0, blob.size, 200
    else:
        start, length = wanted
        status = 206
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{blob.size}"
    headers["Content-Length"] = str(length)
    if length <= CHUNK:
        # Read before the status goes out: what cannot be read is an error, not a torn answer.
        data = await read(start, length) if length else b""
        return Response(data, status_code=status, headers=headers, media_type=media_type)
    first = await read(start, CHUNK)
    return StreamingResponse(
        _chunks(first, read, start, length), status_code=status, headers=headers, media_type=media_type
    )


async def _chunks(first: bytes, read: Read, start: int, length: int) -> AsyncIterator[bytes]:
    yield first
    position = start + len(first)
    while position < start + length:
        data = await read(position, min(CHUNK, start + length - position))
        yield data
        position += len(data)


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first == "":
        length = min(int(last), size)
        start = size - length
    else:
        start = int(first)
        end = min(int(last), size - 1) if last else size - 1
        if last and int(last) < start:
            return None
        length = end - start + 1
    if start >= size or length <= 0:
        raise HTTPException(
            416, f"The content has {size} bytes; the range begins behind them.", {"Content-Range": f"bytes */{size}"}
        )
    return start, length
