"""Tasks in PostgreSQL, always within one project."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from journeyman.platform.tasks.models import Task


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


async def lock(session: AsyncSession, project_id: str, task_id: str) -> Task | None:
    """The task, locked until the transaction ends and as it is now."""
    return await session.scalar(
        sa.select(Task)
        .where(Task.id == task_id, Task.project_id == project_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )


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
