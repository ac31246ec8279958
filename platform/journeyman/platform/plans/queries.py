"""Reading plans with their progress, for the API and for what agents are shown."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.plans.models import Plan, Subtask


async def revisions(session: AsyncSession, task_id: str) -> Sequence[Plan]:
    """All revisions of the task's plan, the oldest first."""
    rows = await session.scalars(sa.select(Plan).where(Plan.task_id == task_id).order_by(Plan.revision))
    return rows.all()


async def of_revision(session: AsyncSession, task_id: str, revision: int) -> Plan | None:
    return await session.scalar(sa.select(Plan).where(Plan.task_id == task_id, Plan.revision == revision))


async def last_revision(session: AsyncSession, task_id: str) -> int:
    """The highest number that a plan of the task has; 0 before there is one."""
    return await session.scalar(sa.select(sa.func.max(Plan.revision)).where(Plan.task_id == task_id)) or 0


async def progress(session: AsyncSession, task_id: str, revision: int) -> dict[str, Subtask]:
    """The subtasks of a revision by their id in the plan, in its order."""
    rows = await session.scalars(
        sa.select(Subtask).where(Subtask.task_id == task_id, Subtask.revision == revision).order_by(Subtask.position)
    )
    return {row.subtask_id: row for row in rows}
