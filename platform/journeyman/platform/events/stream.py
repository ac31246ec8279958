"""Following event logs live: one reader a task and process, any number of followers, nothing lost and nothing doubled.

The log in PostgreSQL is the only truth. A notification says that it is time to read; each follower has its own position
and gets what is behind it from the tail that all share, or from the table when it is further behind than the tail reaches.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from journeyman.platform.events import repository
from journeyman.platform.events.models import Event
from journeyman.platform.events.schemas import EventView, Wanted
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.outages import database_unavailable

KEEPALIVE_S: Final = 15.0
PAGE: Final = 200
TAIL: Final = 512
"""Newest events of a followed task that are kept encoded."""
TAIL_BYTES: Final = 4 * 1024 * 1024
RECHECK_S: Final = 5.0
"""How long a lost notification can delay an event."""
_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 1.0

KEEPALIVE: Final = b": keepalive\n\n"
OPENING: Final = b": open\nretry: 1000\n\n"

_log = get_logger(__name__)

# Valid in JSON, but line breaks to readers who split text the Unicode way: they would cut an event in two.
_LINE_BREAKS: Final = (("\u0085", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


@dataclass(frozen=True, slots=True)
class Frame:
    """An event as it goes over the wire."""

    seq: int
    type: str
    data: bytes


def frame(event: Event) -> Frame:
    document = EventView.of(event).model_dump_json()
    if not document.isascii():
        for character, escape in _LINE_BREAKS:
            document = document.replace(character, escape)
    return Frame(event.seq, event.type, f"id: {event.seq}\nevent: {event.type}\ndata: {document}\n\n".encode())


def end_frame(seq: int) -> bytes:
    """Says that the log is closed after ``seq``."""
    return f'event: end\ndata: {{"last_seq":{seq}}}\n\n'.encode()


class Tail:
    """The newest events of one task, encoded once for all who follow it. Reads while there are followers."""

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.head: int | None = None
        """Newest seq known; None until the log was looked at once."""
        self.closed = False
        """The task has ended: nothing follows ``head``."""
        self.followers = 0
        self.dirty = asyncio.Event()
        self._bytes = 0
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reader: asyncio.Task[None] | None = None

    def take(self, frames: list[Frame], head: int, *, closed: bool) -> None:
        """Append what was read, forget the oldest beyond the bounds, and wake all followers."""
        for item in frames:
            self.frames.append(item)
            self._bytes += len(item.data)
        while self.frames and (len(self.frames) > TAIL or self._bytes > TAIL_BYTES):
            self._bytes -= len(self.frames.popleft().data)
        if head == self.head and closed == self.closed:
            return
        self.head, self.closed = head, closed
        self.wake()

    def wake(self) -> None:
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        if not news.done():
            news.set_result(None)

    def since(self, seq: int) -> list[Frame] | None:
        """What is known behind ``seq``; None when the tail does not reach back so far."""
        if self.head is None or seq >= self.head:
            return []
        if not self.frames or self.frames[0].seq > seq + 1:
            return None
        # Without gaps, a position in the log is a position in the deque.
        return [self.frames[index] for index in range(seq + 1 - self.frames[0].seq, len(self.frames))]

    async def news(self, timeout_s: float) -> bool:
        """Wait until something changes; False when nothing did in that time."""
        news = self._news
        done, _ = await asyncio.wait({news}, timeout=timeout_s)
        return bool(done)


class EventFeed:
    """Hands out the logs of tasks as server-sent events. Holds no database connection while it waits."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tails: dict[str, Tail] = {}
        self._closing = False

    def notified(self, task_id: str | None) -> None:
        """Events may have been written: to this task, or (None) to any."""
        if task_id is None:
            for each in self._tails.values():
                each.dirty.set()
        elif tail := self._tails.get(task_id):
            tail.dirty.set()

    @property
    def followers(self) -> int:
        return sum(tail.followers for tail in self._tails.values())

    async def close(self) -> None:
        """End all streams where they are; followers come back with ``Last-Event-ID``."""
        self._closing = True
        readers = [tail.reader for tail in self._tails.values() if tail.reader is not None]
        for tail in self._tails.values():
            tail.wake()
        for reader in readers:
            reader.cancel()
        for reader in readers:
            with suppress(asyncio.CancelledError):
                await reader

    async def follow(
        self, task_id: str, after: int, passes: Wanted, *, keepalive_s: float = KEEPALIVE_S
    ) -> AsyncGenerator[bytes]:
        """The log behind ``after`` as it is and as it grows, until it is closed; keepalives while nothing happens.

        The caller has made sure that the task may be read. Several events may come in one piece.
        """
        tail = self._join(task_id)
        try:
            yield OPENING
            seq = after
            while not self._closing:
                frames = tail.since(seq)
                if frames is None:
                    frames = await self._page(task_id, seq)
                if frames:
                    seq = frames[-1].seq
                    if piece := b"".join(item.data for item in frames if passes(item.type)):
                        yield piece
                elif tail.closed and tail.head is not None and seq >= tail.head:
                    yield end_frame(tail.head)
                    return
                elif not await tail.news(keepalive_s):
                    yield KEEPALIVE
        finally:
            self._leave(task_id, tail)

    def _join(self, task_id: str) -> Tail:
        tail = self._tails.get(task_id)
        if tail is None:
            tail = self._tails[task_id] = Tail()
            tail.reader = asyncio.create_task(self._read(task_id, tail), name=f"tail of {task_id}")
        tail.followers += 1
        return tail

    def _leave(self, task_id: str, tail: Tail) -> None:
        tail.followers -= 1
        if tail.followers == 0:
            if self._tails.get(task_id) is tail:
                del self._tails[task_id]
            if tail.reader is not None:
                tail.reader.cancel()

    async def _read(self, task_id: str, tail: Tail) -> None:
        """Keep the tail up to date until the log is closed or nobody follows."""
        retry_s = _FIRST_RETRY_S
        while True:
            tail.dirty.clear()
            try:
                await self._advance(task_id, tail)
            except Exception as error:  # noqa: BLE001
                # Followers stay connected: they see keepalives until the log can be read again.
                if not database_unavailable(error):
                    _log.error("events.tail_failed", task_id=task_id, exc_info=error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            if tail.closed:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(tail.dirty.wait(), RECHECK_S)

    async def _advance(self, task_id: str, tail: Tail) -> None:
        async with self._database.transaction() as session:
            head, closed = await repository.head(session, task_id)
            if tail.head is None:
                # What was before the first follower came is read by those who want it.
                tail.take([], head, closed=closed)
                return
            while tail.head < head:
                events = await repository.after(session, task_id, tail.head, limit=PAGE)
                frames = [frame(event) for event in events]
                if not frames:
                    return
                tail.take(frames, frames[-1].seq, closed=False)
                session.expunge_all()
            if closed and tail.head == head:
                tail.take([], head, closed=True)

    async def _page(self, task_id: str, seq: int) -> list[Frame]:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                async with self._database.transaction() as session:
                    return [frame(event) for event in await repository.after(session, task_id, seq, limit=PAGE)]
            except Exception as error:
                if not database_unavailable(error):
                    raise
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
