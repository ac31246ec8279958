"""Reading the event log."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events.models import Event
from journeyman.platform.tasks.models import Task


async def after(
    session: AsyncSession, task_id: str, seq: int, *, limit: int, types: Sequence[str] = ()
) -> Sequence[Event]:
    """At most ``limit`` events behind ``seq``, in order."""
    statement = sa.select(Event).where(Event.task_id == task_id, Event.seq > seq).order_by(Event.seq).limit(limit)
    if types:
        statement = statement.where(Event.type.in_(types))
    return (await session.scalars(statement)).all()


async def head(session: AsyncSession, task_id: str) -> tuple[int, bool]:
    """The newest ``seq``, and whether the log is closed: the task has ended and nothing can follow."""
    row = (await session.execute(sa.select(Task.last_seq, Task.finished_at).where(Task.id == task_id))).one_or_none()
    return (0, True) if row is None else (row.last_seq, row.finished_at is not None)
