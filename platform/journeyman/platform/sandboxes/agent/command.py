"""One command: its process, and a bounded record of its output."""

from __future__ import annotations

import time

from .protocol import CHUNK, STREAM_FRAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .connections import Task


class RunningCommand:
    """A command: its process, and a bounded record of its output (the first half of the limit, and the last)."""

    def __init__(self, exec_id: str, limit: int) -> None:
        self.id = exec_id
        self.half = max(limit, 2) // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0
        self.pid = 0
        self.started = time.monotonic()
        self.ended = 0.0
        self.deadline = float("inf")
        self.exited_at: float | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.finished = False
        self.timed_out = False
        self.oom = False
        self.oom_mark = 0
        self.pids_hit = False
        self.disk_full = False
        self.end_leftovers = False
        self.leftovers = 0
        self.killing = False
        self.pipe = -1
        self.stdin_fd = -1
        self.stdin = memoryview(b"")
        self.watchers: set[Task] = set()

    def append(self, data: bytes) -> None:
        self.total += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            self.tail += data
            if len(self.tail) > self.half + CHUNK:
                del self.tail[: len(self.tail) - self.half]

    def piece(self, cursor: int) -> tuple[int, bytes]:
        """Up to a stream frame of output from the cursor on, or from the next byte that is still kept."""
        if cursor < len(self.head):
            return cursor, bytes(self.head[cursor : cursor + STREAM_FRAME])
        start = self.total - len(self.tail)
        cursor = max(cursor, start)
        return cursor, bytes(self.tail[cursor - start : cursor - start + STREAM_FRAME])

    def kept(self) -> tuple[bytes, bytes]:
        if len(self.head) + len(self.tail) == self.total and self.total <= 2 * self.half:
            return bytes(self.head), bytes(self.tail)
        return bytes(self.head), bytes(self.tail[max(0, len(self.tail) - self.half) :])

    def forget_output(self) -> int:
        freed = len(self.head) + len(self.tail)
        self.head, self.tail = bytearray(), bytearray()
        return freed
