"""What is known of tasks whose workflow should run."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.branching.models import Rewind
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.tasks.contract import TERMINAL
from journeyman.platform.tasks.models import Task


@dataclass(frozen=True, slots=True)
class Started:
    """A task that has not ended and whose workflow was started. ``payload`` is the start as it was delivered."""

    task_id: str
    paused_reason: str | None
    cancelled: bool
    """Its cancellation was requested and delivered."""
    payload: Json


async def started_tasks(session: AsyncSession, *, after: str, older_than: timedelta, limit: int) -> Sequence[Started]:
    """Tasks in the order of their ids, from the first after ``after``, whose start was delivered that long ago."""
    rows = await session.execute(
        sa.select(Task.id, Task.paused_reason, Task.cancel_requested_at.is_not(None), OutboxEntry.payload)
        .join(OutboxEntry, sa.and_(OutboxEntry.task_id == Task.id, OutboxEntry.kind == "start_task"))
        .where(
            Task.id > after,
            Task.state.not_in([state.value for state in TERMINAL]),
            OutboxEntry.delivered_at < now() - older_than,
        )
        .order_by(Task.id)
        .limit(limit)
    )
    return [Started(*row) for row in rows]


async def newest_rewinds(session: AsyncSession, task_id: str) -> tuple[Json | None, str | None]:
    """The progress that the newest applied rewind left, and the id of the newest one that waits to be applied."""
    applied = await session.scalar(
        sa.select(Rewind.progress)
        .where(Rewind.task_id == task_id, Rewind.applied_at.is_not(None))
        .order_by(Rewind.applied_at.desc())
        .limit(1)
    )
    waiting = await session.scalar(
        sa.select(Rewind.id)
        .where(Rewind.task_id == task_id, Rewind.applied_at.is_(None))
        .order_by(Rewind.requested_at.desc())
        .limit(1)
    )
    return applied, waiting
