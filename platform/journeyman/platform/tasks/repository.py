"""Rows of tasks: reading, locking, counting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer, load_only

from journeyman.platform.kit.errors import NotFound
from journeyman.platform.tasks.models import Task

FOR_STEP = (
    load_only(
        Task.project_id,
        Task.environment,
        Task.budget,
        Task.approval_policy,
        Task.memory,
        Task.models,
        Task.model_tier,
        Task.plan_revision,
        Task.started_at,
        Task.message_count,
        Task.inherited,
        Task.epoch,
    ),
)
"""Loads of a task what a step needs of it."""


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Which tasks, newest first; ``before`` is the last row of the page before this."""

    states: Sequence[str] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    created_before: datetime | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 20


async def add(session: AsyncSession, task: Task) -> None:
    session.add(task)
    await session.flush()


async def get(session: AsyncSession, project_id: str, task_id: str) -> Task | None:
    return await session.scalar(sa.select(Task).where(Task.id == task_id, Task.project_id == project_id))


async def for_step(session: AsyncSession, task_id: str) -> Task:
    """The task with what a step needs of it: not the instruction, which may be a megabyte and is in the thread already."""
    return await session.get_one(Task, task_id, options=FOR_STEP)


async def lock_task(session: AsyncSession, task_id: str, *, project_id: str | None = None) -> Task:
    """The task's row as it is now, locked until the transaction ends. Raises :class:`NotFound`, also for a task of a
    project other than the one given.
    """
    statement = sa.select(Task).where(Task.id == task_id)
    if project_id is not None:
        statement = statement.where(Task.project_id == project_id)
    task = await session.scalar(statement.with_for_update(key_share=True).execution_options(populate_existing=True))
    if task is None:
        raise NotFound(f"There is no task {task_id}.", code="task_not_found")
    return task


async def find(session: AsyncSession, project_id: str, query: TaskQuery) -> Sequence[Task]:
    """At most ``limit`` tasks, without what a list does not show."""
    statement = (
        sa.select(Task)
        .options(defer(Task.instruction), defer(Task.environment), defer(Task.workspace))
        .where(Task.project_id == project_id)
        .order_by(Task.created_at.desc(), Task.id.desc())
        .limit(query.limit)
    )
    if query.states:
        statement = statement.where(Task.state.in_(query.states))
    if query.metadata:
        statement = statement.where(Task.labels.contains(dict(query.metadata)))
    if query.created_after is not None:
        statement = statement.where(Task.created_at > query.created_after)
    if query.created_before is not None:
        statement = statement.where(Task.created_at < query.created_before)
    if query.before is not None:
        moment, task_id = query.before
        statement = statement.where(sa.tuple_(Task.created_at, Task.id) < sa.tuple_(moment, task_id))
    return (await session.scalars(statement)).all()


async def count_by_state(session: AsyncSession) -> dict[str, int]:
    """How many tasks of all projects are in each state; a state without any is left out."""
    rows = await session.execute(sa.select(Task.state, sa.func.count().label("tasks")).group_by(Task.state))
    return {row.state: row.tasks for row in rows}


async def count_by_pause(session: AsyncSession) -> dict[str, int]:
    """How many tasks of all projects are paused for each reason; a reason without any is left out."""
    rows = await session.execute(
        sa.select(Task.paused_reason, sa.func.count().label("tasks"))
        .where(Task.paused_reason.is_not(None))
        .group_by(Task.paused_reason)
    )
    return {row.paused_reason: row.tasks for row in rows}


async def states(session: AsyncSession, task_ids: Sequence[str]) -> dict[str, str]:
    """The state of each of these tasks."""
    rows = await session.execute(sa.select(Task.id, Task.state).where(Task.id.in_(task_ids)))
    return {row.id: row.state for row in rows}
