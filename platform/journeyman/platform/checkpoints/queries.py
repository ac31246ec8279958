"""Reading checkpoints for the API."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints.models import Checkpoint


async def page(session: AsyncSession, task_id: str, *, before_seq: int | None, limit: int) -> Sequence[Checkpoint]:
    """At most ``limit`` checkpoints, newest first, from before an event."""
    statement = (
        sa.select(Checkpoint).where(Checkpoint.task_id == task_id).order_by(Checkpoint.event_seq.desc()).limit(limit)
    )
    if before_seq is not None:
        statement = statement.where(Checkpoint.event_seq < before_seq)
    return (await session.scalars(statement)).all()


async def newest(session: AsyncSession, task_id: str) -> Checkpoint | None:
    found = await page(session, task_id, before_seq=None, limit=1)
    return found[0] if found else None


async def checkpoint(session: AsyncSession, task_id: str, checkpoint_id: str) -> Checkpoint | None:
    return await session.scalar(
        sa.select(Checkpoint).where(Checkpoint.id == checkpoint_id, Checkpoint.task_id == task_id)
    )
