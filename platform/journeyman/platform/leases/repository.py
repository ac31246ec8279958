"""Leases on sandboxes, and the machines that hold them, in PostgreSQL."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.leases.models import SandboxLease, SandboxNode


async def add(session: AsyncSession, lease: SandboxLease) -> None:
    """Raises ``IntegrityError`` while another sandbox is leased for the same task and purpose."""
    session.add(lease)
    await session.flush()


async def get(session: AsyncSession, sandbox_id: str) -> SandboxLease:
    """A lease that there is, whether it has ended or not."""
    return await session.get_one(SandboxLease, sandbox_id)


async def leased(session: AsyncSession, task_id: str, purpose: str) -> SandboxLease | None:
    """The lease that holds now, whether its sandbox still answers or not."""
    return await session.scalar(
        sa.select(SandboxLease).where(
            SandboxLease.task_id == task_id, SandboxLease.purpose == purpose, SandboxLease.state == "leased"
        )
    )


async def all_leased(session: AsyncSession, task_id: str) -> Sequence[SandboxLease]:
    """Every lease of the task that holds now."""
    rows = await session.scalars(
        sa.select(SandboxLease).where(SandboxLease.task_id == task_id, SandboxLease.state == "leased")
    )
    return rows.all()


async def newest(session: AsyncSession, task_id: str, purpose: str) -> SandboxLease | None:
    """The last lease that there was, whether it has ended or not."""
    return await session.scalar(
        sa.select(SandboxLease)
        .where(SandboxLease.task_id == task_id, SandboxLease.purpose == purpose)
        .order_by(SandboxLease.generation.desc())
        .limit(1)
        .execution_options(populate_existing=True)
    )


async def mark_lost(session: AsyncSession, sandbox_id: str) -> datetime | None:
    """End a lease whose sandbox is gone; when it began, or None if somebody has ended it before."""
    return await session.scalar(
        sa.update(SandboxLease)
        .where(SandboxLease.id == sandbox_id, SandboxLease.state == "leased")
        .values(state="lost", ended_at=now())
        .returning(SandboxLease.leased_at)
        .execution_options(synchronize_session=False)
    )


async def ended_before(session: AsyncSession, sandbox_ids: Collection[str], age: timedelta) -> Sequence[str]:
    """Those of the sandboxes whose lease ended longer ago than that, by the database's clock."""
    rows = await session.scalars(
        sa.select(SandboxLease.id).where(
            SandboxLease.id.in_(sandbox_ids),
            SandboxLease.state != "leased",
            SandboxLease.ended_at < sa.func.clock_timestamp() - age,
        )
    )
    return rows.all()


async def note_alive(session: AsyncSession, node: str) -> None:
    """Note that the machine was heard of now, by the database's clock."""
    seen_at = sa.func.clock_timestamp()
    await session.execute(
        insert(SandboxNode)
        .values(id=node, seen_at=seen_at)
        .on_conflict_do_update(index_elements=["id"], set_={"seen_at": seen_at})
    )


async def is_alive(session: AsyncSession, node: str, within: timedelta) -> bool:
    """Whether the machine was heard of that recently, by the database's clock."""
    alive = sa.select(
        sa.exists().where(SandboxNode.id == node, SandboxNode.seen_at > sa.func.clock_timestamp() - within)
    )
    return bool(await session.scalar(alive))
