"""Plan revisions and the progress of their subtasks."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.errors import NotFound
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.plans import queries
from journeyman.platform.plans.models import Plan, Subtask


async def add_revision(
    session: AsyncSession,
    *,
    project_id: str,
    task_id: str,
    revision: int,
    subtasks: list[dict[str, Any]],
    acceptance: list[str],
    reason: str | None,
    author: str | None = None,
) -> bool:
    """Store a revision with all its subtasks pending; returns whether it is new."""
    plan_id = derived_id("plan", task_id, revision)
    if await session.get(Plan, plan_id) is not None:
        return False
    session.add(
        Plan(
            id=plan_id,
            project_id=project_id,
            task_id=task_id,
            revision=revision,
            subtasks=subtasks,
            acceptance=acceptance,
            reason=reason,
            author=author,
        )
    )
    session.add_all(
        Subtask(
            task_id=task_id,
            revision=revision,
            subtask_id=subtask["id"],
            project_id=project_id,
            position=position,
            state="pending",
            rounds=0,
        )
        for position, subtask in enumerate(subtasks)
    )
    await session.flush()
    return True


async def get_plan(session: AsyncSession, task_id: str, revision: int) -> Plan:
    """Raises :class:`NotFound`."""
    plan = await queries.of_revision(session, task_id, revision)
    if plan is None:
        raise NotFound(f"Task {task_id} has no plan revision {revision}.")
    return plan


async def get_subtask(session: AsyncSession, task_id: str, revision: int, subtask_id: str) -> Subtask:
    """The progress row, locked for this transaction."""
    subtask = await session.get(Subtask, (task_id, revision, subtask_id), with_for_update=True)
    if subtask is None:
        raise NotFound(f"Plan revision {revision} of task {task_id} has no subtask {subtask_id}.")
    return subtask


async def done_subtasks(session: AsyncSession, task_id: str, *, before_revision: int) -> list[tuple[Subtask, str]]:
    """What was completed in the plans before a revision, with its title; without plans that a rewind went back to before."""
    rows = await session.execute(
        sa.select(Subtask, Plan.subtasks)
        .join(Plan, sa.and_(Plan.task_id == Subtask.task_id, Plan.revision == Subtask.revision))
        .where(Subtask.task_id == task_id, Subtask.revision < before_revision, Subtask.state == "completed")
        .order_by(Subtask.revision, Subtask.position)
    )
    return [
        (row, next(entry["title"] for entry in subtasks if entry["id"] == row.subtask_id)) for row, subtasks in rows
    ]


async def subtasks_in_force(session: AsyncSession, task_id: str) -> list[tuple[Plan, Subtask]]:
    """The subtasks of all plans but those that a rewind went back to before."""
    rows = await session.execute(
        sa.select(Plan, Subtask)
        .join(Subtask, sa.and_(Plan.task_id == Subtask.task_id, Plan.revision == Subtask.revision))
        .where(Subtask.task_id == task_id, Subtask.state != "superseded")
        .order_by(Subtask.revision, Subtask.position)
    )
    return [(plan, subtask) for plan, subtask in rows]


async def has_begun(session: AsyncSession, task_id: str, revision: int) -> bool:
    """Whether any subtask of the plan was ever begun."""
    begun = sa.exists().where(Subtask.task_id == task_id, Subtask.revision == revision, Subtask.state != "pending")
    return bool(await session.scalar(sa.select(begun)))
