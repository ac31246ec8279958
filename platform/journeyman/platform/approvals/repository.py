"""Approvals in PostgreSQL."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals.models import Approval


@dataclass(frozen=True, slots=True)
class ApprovalQuery:
    """Which approvals, newest first; ``before`` is the last row of the page before this."""

    states: Sequence[str] = ()
    kind: str | None = None
    task_id: str | None = None
    escalated: bool | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 20


async def add(session: AsyncSession, approval: Approval) -> None:
    session.add(approval)
    await session.flush()


async def by_step(session: AsyncSession, step_keys: Sequence[str]) -> dict[str, Approval]:
    """What these steps asked for already, by step key."""
    rows = await session.scalars(sa.select(Approval).where(Approval.step_key.in_(step_keys)))
    return {row.step_key: row for row in rows}


async def get(session: AsyncSession, project_id: str, approval_id: str) -> Approval | None:
    return await session.scalar(
        sa.select(Approval).where(Approval.id == approval_id, Approval.project_id == project_id)
    )


async def lock(session: AsyncSession, approval_id: str) -> Approval:
    """The approval as it is now, locked. The caller holds the lock of its task: always first the task, then this."""
    return await session.get_one(Approval, approval_id, with_for_update=True, populate_existing=True)


async def lock_pending(session: AsyncSession, task_id: str, *, only: Sequence[str] | None = None) -> Sequence[Approval]:
    """What of the task is pending, or of the approvals that ``only`` names, locked, the oldest first. As for :func:`lock`."""
    statement = sa.select(Approval).where(Approval.task_id == task_id, Approval.state == "pending")
    if only is not None:
        statement = statement.where(Approval.id.in_(only))
    rows = await session.scalars(
        statement.order_by(Approval.requested_at, Approval.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    return rows.all()


async def plans_with_prefix(session: AsyncSession, task_id: str, prefix: str) -> Sequence[Approval]:
    """The task's approvals of plans whose step key begins so."""
    rows = await session.scalars(
        sa.select(Approval).where(
            Approval.task_id == task_id, Approval.kind == "plan", Approval.step_key.startswith(prefix, autoescape=True)
        )
    )
    return rows.all()


async def latest_of_plan(session: AsyncSession, task_id: str) -> Approval | None:
    """The task's newest approval of a plan, locked. The caller holds the lock of the task."""
    return await session.scalar(
        sa.select(Approval)
        .where(Approval.task_id == task_id, Approval.kind == "plan")
        .order_by(Approval.requested_at.desc(), Approval.id.desc())
        .limit(1)
        .with_for_update()
        .execution_options(populate_existing=True)
    )


async def find(session: AsyncSession, project_id: str, query: ApprovalQuery) -> Sequence[Approval]:
    """At most ``query.limit`` approvals, newest first."""
    statement = (
        sa.select(Approval)
        .where(Approval.project_id == project_id)
        .order_by(Approval.requested_at.desc(), Approval.id.desc())
        .limit(query.limit)
    )
    if query.states:
        statement = statement.where(Approval.state.in_(query.states))
    if query.kind is not None:
        statement = statement.where(Approval.kind == query.kind)
    if query.task_id is not None:
        statement = statement.where(Approval.task_id == query.task_id)
    if query.escalated is not None:
        escalated = Approval.escalated_at.is_not(None)
        statement = statement.where(escalated if query.escalated else ~escalated)
    if query.before is not None:
        moment, approval_id = query.before
        statement = statement.where(
            sa.tuple_(Approval.requested_at, Approval.id) < sa.tuple_(sa.literal(moment), sa.literal(approval_id))
        )
    return (await session.scalars(statement)).all()


async def pending_by_kind(session: AsyncSession) -> dict[str, int]:
    """How many wait, over all projects."""
    rows = await session.execute(
        sa.select(Approval.kind, sa.func.count().label("waiting"))
        .where(Approval.state == "pending")
        .group_by(Approval.kind)
    )
    return {row.kind: row.waiting for row in rows}
