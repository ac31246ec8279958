"""Writing the event log: always inside the transaction that changes the state the event tells of."""

import re
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.metrics import EVENTS_APPENDED, count_after_commit
from journeyman.platform.tasks.models import Task

CHANNEL: Final = "journeyman_events"
"""PostgreSQL notification channel; the payload is the task id."""

MAX_STRING: Final = 16 * 1024
"""Characters of one string in an event. The whole text is kept where it came from: message, output or artifact."""


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def storable(value: Any) -> Any:
    """The value with what JSONB cannot hold made visible: NUL becomes U+2400, a lone surrogate U+FFFD; long text is cut."""
    if isinstance(value, str):
        text = value
        if "\x00" in text:
            text = text.replace("\x00", "\u2400")
        if not text.isascii():
            text = _SURROGATE.sub("\ufffd", text)
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
) -> Event:
    """Append one event. With a ``step_key`` that already has one, that event is returned and nothing is written.

    The task's row is locked until the transaction ends: events of one task get their ``seq`` in commit order, so the
    sequence has no gap and a reader never sees 7 before 6. Keep transactions that append short.

    The log of a task that has ended is closed: a worker that was cut off and wakes up late gets :class:`Conflict`
    with code ``task_ended`` and its whole transaction is undone.
    """
    # NO KEY: rows that refer to the task may be written meanwhile.
    row = (
        await session.execute(
            sa.select(Task.project_id, Task.finished_at).where(Task.id == task_id).with_for_update(key_share=True)
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"There is no task {task_id}.")
    if step_key is not None:
        existing = await session.scalar(sa.select(Event).where(Event.step_key == step_key))
        if existing is not None:
            return existing
    if row.finished_at is not None:
        raise Conflict(f"Task {task_id} has ended; nothing more can happen to it.", code="task_ended")
    moment = now()
    seq = await session.scalar(
        sa.update(Task)
        .where(Task.id == task_id)
        .values(last_seq=Task.last_seq + 1, updated_at=moment)
        .returning(Task.last_seq)
        .execution_options(synchronize_session=False)
    )
    event = Event(
        task_id=task_id,
        seq=seq,
        id=new_id("event"),
        project_id=row.project_id,
        type=type_.value,
        time=moment,
        thread_id=thread_id,
        subtask_id=subtask_id,
        data=storable(data),
        step_key=step_key,
    )
    session.add(event)
    await session.flush()
    await session.execute(sa.select(sa.func.pg_notify(CHANNEL, task_id)))
    count_after_commit(session, EVENTS_APPENDED, type_.value)
    return event
