"""Writing the event log: always inside the transaction that changes the state the event tells of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.metrics import EVENTS_APPENDED, count_after_commit
from journeyman.platform.kit.text import cleaned
from journeyman.platform.tasks.models import Task

CHANNEL: Final = "journeyman_events"
"""PostgreSQL notification channel; the payload is the task id."""

MAX_STRING: Final = 16 * 1024
"""Characters of one string in an event. The whole text is kept where it came from: message, output or artifact."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be appended. ``step_key``: set where an activity may write it twice."""

    type: EventType
    data: Json
    thread_id: str | None = None
    subtask_id: str | None = None
    step_key: str | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """An event's place in the log. ``new``: it was written now, not by an earlier attempt at the same step."""

    id: str
    seq: int
    new: bool


_LOCK: Final = sa.text("SELECT 1 FROM tasks WHERE id = :task_id FOR NO KEY UPDATE").bindparams(
    sa.bindparam("task_id", type_=sa.Text)
)

# One statement for any number of events, because every step of every agent pays for it several times: leave out what was
# written before, take the next numbers, write, notify (once: PostgreSQL drops what a transaction repeats).
_APPEND: Final = sa.text(
    """
    WITH given AS MATERIALIZED (
        SELECT given.*, row_number() OVER (ORDER BY place) AS number, count(*) OVER () AS total
        FROM ROWS FROM (
            jsonb_to_recordset(:events) AS (id text, type text, thread_id text, subtask_id text, data jsonb, step_key text)
        ) WITH ORDINALITY AS given(id, type, thread_id, subtask_id, data, step_key, place)
        WHERE step_key IS NULL OR NOT EXISTS (SELECT 1 FROM events WHERE events.step_key = given.step_key)
    ),
    head AS (
        UPDATE tasks SET last_seq = last_seq + given.total, updated_at = :time FROM given
        WHERE tasks.id = :task_id AND finished_at IS NULL AND given.number = 1
        RETURNING last_seq - given.total AS last_seq, project_id
    )
    INSERT INTO events (task_id, seq, id, project_id, type, time, thread_id, subtask_id, data, step_key)
    SELECT :task_id, head.last_seq + number, id, project_id, type, :time, thread_id, subtask_id, data, step_key
    FROM given, head
    RETURNING id, seq, pg_notify(:channel, :task_id)
    """
).bindparams(
    sa.bindparam("task_id", type_=sa.Text),
    sa.bindparam("events", type_=JSONB),
    sa.bindparam("time", type_=sa.DateTime(timezone=True)),
    sa.bindparam("channel", type_=sa.Text),
)


def storable(value: Any) -> Any:
    """The value with what JSONB cannot hold made visible: NUL becomes U+2400, a lone surrogate U+FFFD; long text is cut."""
    if isinstance(value, str):
        text = cleaned(value)
        if len(text) > MAX_STRING:
            half = MAX_STRING // 2
            text = f"{text[:half]}\n[… {len(text) - MAX_STRING} characters left out …]\n{text[-half:]}"
        return text
    if isinstance(value, dict):
        return {str(storable(str(key))): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


async def append(
    session: AsyncSession,
    task_id: str,
    type_: EventType,
    data: Json,
    *,
    thread_id: str | None = None,
    subtask_id: str | None = None,
    step_key: str | None = None,
) -> Appended:
    """Append one event, as :func:`append_all` does."""
    event = NewEvent(type_, data, thread_id=thread_id, subtask_id=subtask_id, step_key=step_key)
    [appended] = await append_all(session, task_id, [event])
    return appended


async def append_all(
    session: AsyncSession, task_id: str, events: Sequence[NewEvent], *, locked: bool = False
) -> list[Appended]:
    """Append events in this order. Of one whose ``step_key`` already has one nothing is written, and that one is returned.

    The task's row is locked until the transaction ends: events of one task get their ``seq`` in commit order, so the
    sequence has no gap and a reader never sees 7 before 6. Keep transactions that append short. ``locked``: the
    transaction has called :func:`lock` before.

    The log of a task that has ended is closed: a worker that was cut off and wakes up late gets :class:`Conflict`
    with code ``task_ended`` and its whole transaction is undone.
    """
    # What the session still holds back may be part of the same change, the end of the task among it.
    await session.flush()
    if not locked and any(event.step_key is not None for event in events):
        await lock(session, task_id)
    ids = [new_id("event") for _ in events]
    written = await session.execute(
        _APPEND,
        {
            "task_id": task_id,
            "events": [
                {
                    "id": event_id,
                    "type": event.type.value,
                    "thread_id": event.thread_id,
                    "subtask_id": event.subtask_id,
                    "data": storable(event.data),
                    "step_key": event.step_key,
                }
                for event_id, event in zip(ids, events, strict=True)
            ],
            "time": now(),
            "channel": CHANNEL,
        },
    )
    seqs = {row.id: row.seq for row in written}
    appended: list[Appended] = []
    for event_id, event in zip(ids, events, strict=True):
        seq = seqs.get(event_id)
        if seq is None:
            appended.append(await _why_not(session, task_id, event.step_key))
            continue
        count_after_commit(session, EVENTS_APPENDED, event.type.value)
        appended.append(Appended(event_id, seq, new=True))
    return appended


async def lock(session: AsyncSession, task_id: str) -> None:
    """Keep others from appending until the transaction ends.

    A statement of its own, before the one that looks for what was written: one that waits for the lock itself does not
    see what was written meanwhile.
    """
    await session.execute(_LOCK, {"task_id": task_id})


async def known(session: AsyncSession, step_key: str) -> bool:
    """Whether there is an event under the step key. Certain only while the task's row is locked."""
    return await session.scalar(sa.select(Event.seq).where(Event.step_key == step_key)) is not None


async def newest_step_key(session: AsyncSession, task_id: str, type_: EventType) -> str | None:
    """The step key of the task's last event of this type; None when it has none."""
    newest = sa.select(Event.step_key).where(Event.task_id == task_id, Event.type == type_.value)
    return await session.scalar(newest.order_by(Event.seq.desc()).limit(1))


async def _why_not(session: AsyncSession, task_id: str, step_key: str | None) -> Appended:
    if step_key is not None:
        existing = (
            await session.execute(sa.select(Event.id, Event.seq).where(Event.step_key == step_key))
        ).one_or_none()
        if existing is not None:
            return Appended(existing.id, existing.seq, new=False)
    if await session.scalar(sa.select(Task.id).where(Task.id == task_id)) is None:
        raise NotFound(f"There is no task {task_id}.")
    raise Conflict(f"Task {task_id} has ended; nothing more can happen to it.", code="task_ended")
