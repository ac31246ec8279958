"""Reading plans with their progress, for the API and for what agents are shown."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.plans.models import Plan, Subtask


async def revisions(session: AsyncSession, task_id: str) -> Sequence[Plan]:
    """All revisions of the task's plan, the oldest first."""
    rows = await session.scalars(sa.select(Plan).where(Plan.task_id == task_id).order_by(Plan.revision))
    return rows.all()


async def progress(session: AsyncSession, task_id: str, revision: int) -> dict[str, Subtask]:
    """The subtasks of a revision by their id in the plan, in its order."""
    rows = await session.scalars(
        sa.select(Subtask).where(Subtask.task_id == task_id, Subtask.revision == revision).order_by(Subtask.position)
    )
    return {row.subtask_id: row for row in rows}
