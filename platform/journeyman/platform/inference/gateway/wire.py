"""ASGI by hand: the hot path has no framework between the server and the stream."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self

from journeyman.platform.inference.redaction import error_text
from journeyman.platform.kit.errors import InvalidInput, JourneymanError, PayloadTooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = dict[str, str]

MAX_BODY: Final = 64 * 1024 * 1024
JSON_TYPE: Final = "application/json"
_PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}


def headers_of(scope: Scope) -> Headers:
    """Header names in lower case; the last of repeated ones counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(receive: Receive) -> bytes:
    """The whole body. Raises :class:`PayloadTooLarge`, and :class:`InvalidInput` when the caller hangs up first."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidInput("The connection closed before the body was complete.")
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY:
            raise PayloadTooLarge(f"The body is larger than {MAX_BODY // (1024 * 1024)} MiB.")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def start(send: Send, status: int, content_type: str, headers: Headers | None = None) -> None:
    pairs = [(b"content-type", content_type.encode("latin-1"))]
    pairs += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def respond(
    send: Send, status: int, body: bytes, content_type: str = JSON_TYPE, headers: Headers | None = None
) -> None:
    await start(send, status, content_type, {"content-length": str(len(body)), **(headers or {})})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, value: Any, headers: Headers | None = None) -> None:
    await respond(send, status, json.dumps(value).encode(), headers=headers)


def problem(error: JourneymanError, request_id: str, status: int | None = None) -> dict[str, Any]:
    """An error as both of its readers expect it: a problem document (RFC 9457) with OpenAI's ``error`` object in it."""
    status = error.status if status is None else status
    message = error_text(error.message)
    inner = {
        "message": message,
        "type": error.code,
        "param": None,
        "code": error.code,
        "retryable": error.retryable,
        "details": error.details,
    }
    return {
        "type": "about:blank",
        "title": _PHRASES.get(status, "Error"),
        "status": status,
        "detail": message,
        "code": error.code,
        "retryable": error.retryable,
        "request_id": request_id,
        "error": inner,
    }


class ClientWatch:
    """Cancels the work inside its block as soon as the caller hangs up; the block then ends quietly, ``gone`` is set.

    Use it only after the body has been read: it takes over ``receive``.
    """

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        self._worker = asyncio.current_task()
        self._watch = asyncio.create_task(self._wait())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._watch is not None
        assert self._worker is not None
        self._watch.cancel()
        # As asyncio.timeout does: only our own cancellation is swallowed, never that of the server going down.
        return self.gone and self._worker.uncancel() == 0 and kind is asyncio.CancelledError

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        assert self._worker is not None
        self._worker.cancel()
