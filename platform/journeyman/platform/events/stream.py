"""Following event logs live: one reader a task and process, any number of followers, nothing lost and nothing doubled.

The log in PostgreSQL is the only truth. A notification says that it is time to read; each follower has its own position
and gets what is behind it from the tail that all share, or from the table when it is further behind than the tail reaches.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from journeyman.platform.events import repository
from journeyman.platform.events.models import Event
from journeyman.platform.events.repository import EventRow
from journeyman.platform.events.schemas import EventView, Wanted
from journeyman.platform.events.types import EventType
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

ENDINGS: Final = frozenset(
    {EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.TASK_ERRORED, EventType.TASK_CANCELLED}
)
"""Types of which one is always the last of its log."""

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


def frame(event: Event | EventRow) -> Frame:
    document = EventView.of(event).model_dump_json()
    if not document.isascii():
        for character, escape in _LINE_BREAKS:
            document = document.replace(character, escape)
    return Frame(event.seq, event.type, f"id: {event.seq}\nevent: {event.type}\ndata: {document}\n\n".encode())


def end_frame(seq: int) -> bytes:
    """Says that the log is closed after ``seq``."""
    return f'event: end\ndata: {{"last_seq":{seq}}}\n\n'.encode()


class Tail:
    """The newest events of one task, encoded once for all who follow it."""

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.head: int | None = None
        """Newest seq known; None until the log was looked at once."""
        self.closed = False
        """The task has ended: nothing follows ``head``."""
        self.followers = 0
        self._bytes = 0
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

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
    """Hands out the logs of tasks as server-sent events. Holds no database connection while it waits.

    One reader serves all tails: whatever was written to any number of tasks since its last look comes with one query.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        # Single statements: a transaction around them would only cost two more round trips.
        self._reading = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._tails: dict[str, Tail] = {}
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._closing = False

    def notified(self, task_id: str | None) -> None:
        """Events may have been written: to this task, or (None) to any."""
        if task_id is None:
            self._dirty.update(self._tails)
        elif task_id in self._tails:
            self._dirty.add(task_id)
        else:
            return
        self._wake.set()

    @property
    def followers(self) -> int:
        return sum(tail.followers for tail in self._tails.values())

    async def close(self) -> None:
        """End all streams where they are; followers come back with ``Last-Event-ID``."""
        self._closing = True
        for tail in self._tails.values():
            tail.wake()
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

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
            self.notified(task_id)
        tail.followers += 1
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="event feed")
        return tail

    def _leave(self, task_id: str, tail: Tail) -> None:
        tail.followers -= 1
        if tail.followers == 0 and self._tails.get(task_id) is tail:
            del self._tails[task_id]

    async def _read(self) -> None:
        """Keep all tails up to date, for as long as the feed is open."""
        retry_s = _FIRST_RETRY_S
        recheck_at = 0.0
        while True:
            self._wake.clear()
            dirty, self._dirty = self._dirty, set()
            # Followers who come while nothing is notified need the head too, so this is also how they begin.
            thorough = time.monotonic() >= recheck_at
            try:
                await self._advance(list(self._tails) if thorough else list(dirty), thorough=thorough)
            except Exception as error:  # noqa: BLE001
                # Followers stay connected: they see keepalives until the log can be read again.
                if not database_unavailable(error):
                    _log.error("events.feed_failed", exc_info=error)
                self._dirty |= dirty
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            if thorough:
                recheck_at = time.monotonic() + RECHECK_S
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, recheck_at - time.monotonic())):
                    await self._wake.wait()

    async def _advance(self, task_ids: list[str], *, thorough: bool) -> None:
        tails = {task_id: tail for task_id in task_ids if (tail := self._tails.get(task_id)) and not tail.closed}
        if not tails:
            return
        async with self._reading.connect() as connection:
            unknown = [task_id for task_id, tail in tails.items() if thorough or tail.head is None]
            heads = await repository.heads(connection, unknown) if unknown else {}
            # What was before the first follower came is read by those who want it.
            for task_id, (head, closed) in heads.items():
                if tails[task_id].head is None:
                    tails[task_id].take([], head, closed=closed)
            positions = {task_id: tail.head for task_id, tail in tails.items() if tail.head is not None}
            found = await repository.behind(connection, positions, limit=PAGE)
        for task_id, rows in found.items():
            frames = [frame(row) for row in rows]
            tails[task_id].take(frames, frames[-1].seq, closed=frames[-1].type in ENDINGS)
            if len(frames) == PAGE:
                self.notified(task_id)
        for task_id, (head, closed) in heads.items():
            # A log may also be closed by a hand that writes no last event.
            if closed and tails[task_id].head == head:
                tails[task_id].take([], head, closed=True)

    async def _page(self, task_id: str, seq: int) -> list[Frame]:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                async with self._reading.connect() as connection:
                    found = await repository.behind(connection, {task_id: seq}, limit=PAGE)
                return [frame(row) for row in found.get(task_id, ())]
            except Exception as error:
                if not database_unavailable(error):
                    raise
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
