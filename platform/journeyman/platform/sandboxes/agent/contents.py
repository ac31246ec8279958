"""Operation ``blobs``: the contents of files by their path in a snapshot."""

from __future__ import annotations

import os
import stat

from .protocol import CHUNK, ROOTS, OpError, loads
from .tree import open_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .connections import Connection
    from .protocol import Steps


def send_contents(connection: Connection, _header: dict[str, Any], payload: bytes) -> Steps:
    """Send files in frames with ``parts``, in the order asked for, then ``end``.

    Payload: array of paths. A part is ``[index of the path, length, state]``; state 1: more follows, 0: the last,
    2: no such file, or none that can be read. A frame's payload holds its parts' bytes. Errors: ``file_outside``.
    """
    parts: list[list[int]] = []
    buffer = bytearray()
    for index, path in enumerate(loads(payload)):
        try:
            fd = open_readable("/" + inside(path))
        except OSError:
            parts.append([index, 0, 2])
            continue
        try:
            status = os.fstat(fd)
            left = status.st_size  # a file that grows meanwhile must not be read for ever
            if not stat.S_ISREG(status.st_mode):
                parts.append([index, 0, 2])
                continue
            while True:
                data = os.read(fd, min(CHUNK, left))
                left -= len(data)
                parts.append([index, len(data), 1 if data else 0])
                buffer += data
                if len(buffer) >= CHUNK or len(parts) > 1000:
                    connection.send({"parts": parts}, bytes(buffer))
                    parts, buffer = [], bytearray()
                    yield None
                if not data:
                    break
        finally:
            os.close(fd)
    if parts:
        connection.send({"parts": parts}, bytes(buffer))
    connection.send({"end": 1})


def inside(path: str) -> str:
    """Return the path, if it lies below a snapshot root. Raises ``file_outside``."""
    names = path.split("/")
    if names[0] not in ROOTS or len(names) < 2 or any(name in {"", ".", ".."} or "\0" in name for name in names):
        raise OpError("file_outside", f"{path!r} is not a path of a snapshot")
    return path
