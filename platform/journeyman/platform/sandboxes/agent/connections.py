"""One client of the agent: frames that came, frames to send, and the task that serves its request."""

from __future__ import annotations

from .protocol import CHUNK, MAX_HEADER, MAX_PAYLOAD, SIZES, dumps, loads, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections import deque
    from collections.abc import Iterable
    from typing import Any

    from .protocol import Steps, Wait
else:
    from _collections import deque


class Task:
    """A generator and what it waits for."""

    __slots__ = ("connection", "gen", "queued", "wait")

    def __init__(self, gen: Steps, connection: Connection | None) -> None:
        self.gen = gen
        self.connection = connection
        self.wait: Wait = None
        self.queued = False


class Connection:
    __slots__ = ("fd", "frames", "inbox", "mask", "out", "sock", "task")

    def __init__(self, sock: _socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.inbox = bytearray()
        self.out = bytearray()
        self.frames: deque[tuple[dict[str, Any], bytes]] = deque()
        self.task: Task | None = None
        self.mask = 0

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Queue a frame. The loop writes it out, and lets the task wait while too much is queued."""
        self.out += pack(header, payload)

    def send_rows(self, name: str, rows: Iterable[Any]) -> Steps:
        """Send rows as JSON arrays, about a chunk of bytes in each frame. ``name`` in the header is their number."""
        batch: list[str] = []
        size = 0
        for row in rows:
            encoded = dumps(row)
            batch.append(encoded)
            size += len(encoded) + 1
            if size > CHUNK:
                self.send({name: len(batch)}, f"[{','.join(batch)}]".encode())
                batch, size = [], 0
                yield None
        if batch:
            self.send({name: len(batch)}, f"[{','.join(batch)}]".encode())

    def receive(self, data: bytes) -> bool:
        """Take bytes that came, and queue the frames that they complete. Return false when they are no frames."""
        self.inbox += data
        while len(self.inbox) >= SIZES.size:
            header_size, payload_size = SIZES.unpack_from(self.inbox)
            if header_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
                return False
            start, end = SIZES.size + header_size, SIZES.size + header_size + payload_size
            if len(self.inbox) < end:
                break
            try:
                header = loads(self.inbox[SIZES.size : start])
            except ValueError:
                return False
            if not isinstance(header, dict):
                return False
            payload = bytes(self.inbox[start:end])
            del self.inbox[:end]
            self.frames.append((header, payload))
        return True
