"""Reading checkpoints for the API."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.tasks.models import Task


async def page(session: AsyncSession, task_id: str, *, before_seq: int | None, limit: int) -> Sequence[Checkpoint]:
    """At most ``limit`` checkpoints, newest first, from before an event."""
    statement = (
        sa.select(Checkpoint).where(Checkpoint.task_id == task_id).order_by(Checkpoint.event_seq.desc()).limit(limit)
    )
    if before_seq is not None:
        statement = statement.where(Checkpoint.event_seq < before_seq)
    return (await session.scalars(statement)).all()


async def newest(session: AsyncSession, task: Task) -> Checkpoint | None:
    """The newest checkpoint of what is in force: right after a rewind or a fork, the one that the task goes on from."""
    own = await session.scalar(
        sa.select(Checkpoint)
        .where(Checkpoint.task_id == task.id, Checkpoint.epoch == task.epoch)
        .order_by(Checkpoint.event_seq.desc())
        .limit(1)
    )
    if own is not None:
        return own
    if task.epoch:
        rewound = (
            sa.select(Event.data["to_seq"].as_integer())
            .where(Event.task_id == task.id, Event.type == EventType.TASK_REWOUND)
            .order_by(Event.seq.desc())
            .limit(1)
        )
        return await session.scalar(
            sa.select(Checkpoint).where(
                Checkpoint.task_id == task.id, Checkpoint.event_seq == rewound.scalar_subquery()
            )
        )
    if task.forked_from:
        return await session.get(Checkpoint, task.forked_from["checkpoint_id"])
    return None


async def checkpoint(session: AsyncSession, task_id: str, checkpoint_id: str) -> Checkpoint | None:
    return await session.scalar(
        sa.select(Checkpoint).where(Checkpoint.id == checkpoint_id, Checkpoint.task_id == task_id)
    )
