"""Leases on sandboxes, and the machines that hold them, in PostgreSQL."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.leases.models import SandboxLease, SandboxNode, SandboxPromise
from journeyman.platform.tasks.models import Task


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


async def note_alive(session: AsyncSession, node: str, memory_bytes: int) -> None:
    """Note that the machine was heard of now, by the database's clock, and what it has for sandboxes."""
    seen_at = sa.func.clock_timestamp()
    await session.execute(
        insert(SandboxNode)
        .values(id=node, seen_at=seen_at, memory_bytes=memory_bytes)
        .on_conflict_do_update(index_elements=["id"], set_={"seen_at": seen_at, "memory_bytes": memory_bytes})
    )


async def lock_node(session: AsyncSession, node: str, memory_bytes: int) -> None:
    """Lock the machine's account until the transaction ends; note the machine first if it is new."""
    locked = sa.select(SandboxNode.id).where(SandboxNode.id == node).with_for_update()
    if await session.scalar(locked) is None:
        await note_alive(session, node, memory_bytes)


async def largest_node(session: AsyncSession, within: timedelta) -> int:
    """Bytes that the largest machine has for sandboxes, of those heard of that recently."""
    largest = sa.select(sa.func.max(SandboxNode.memory_bytes)).where(
        SandboxNode.seen_at > sa.func.clock_timestamp() - within
    )
    return int(await session.scalar(largest) or 0)


async def promised_bytes(session: AsyncSession, node: str) -> int:
    """Sum of what the machine's sandboxes were promised."""
    total = sa.select(sa.func.coalesce(sa.func.sum(SandboxPromise.bytes), 0)).where(SandboxPromise.node == node)
    return int((await session.scalars(total)).one())


async def add_promise(session: AsyncSession, sandbox_id: str, node: str, size: int) -> None:
    session.add(SandboxPromise(sandbox_id=sandbox_id, node=node, bytes=size))
    await session.flush()


async def free_promise(session: AsyncSession, sandbox_id: str) -> None:
    """Give back what a sandbox was promised, if it was."""
    await session.execute(sa.delete(SandboxPromise).where(SandboxPromise.sandbox_id == sandbox_id))


async def free_forgotten(session: AsyncSession, node: str, sandbox_ids: Collection[str], age: timedelta) -> int:
    """Free the machine's promises older than that to sandboxes that are not among those that it has. Returns how many."""
    freed = await session.scalars(
        sa.delete(SandboxPromise)
        .where(
            SandboxPromise.node == node,
            SandboxPromise.sandbox_id.not_in(sandbox_ids),
            SandboxPromise.made_at < sa.func.clock_timestamp() - age,
        )
        .returning(SandboxPromise.sandbox_id)
    )
    return len(freed.all())


async def note_wait(session: AsyncSession, task_id: str, wait: Json) -> bool:
    """Note on the task which of its sandboxes waits for memory. Returns whether the task's row did not say so yet."""
    noted = await session.scalar(
        sa.update(Task)
        .where(
            Task.id == task_id,
            sa.or_(Task.sandbox_wait.is_(None), Task.sandbox_wait["purpose"].astext != wait["purpose"]),
        )
        .values(sandbox_wait=wait)
        .returning(Task.id)
        .execution_options(synchronize_session=False)
    )
    return noted is not None


async def end_wait(session: AsyncSession, task_id: str, purpose: str) -> None:
    """Take the note away once the sandbox has its memory."""
    await session.execute(
        sa.update(Task)
        .where(Task.id == task_id, Task.sandbox_wait["purpose"].astext == purpose)
        .values(sandbox_wait=None)
        .execution_options(synchronize_session=False)
    )


async def is_alive(session: AsyncSession, node: str, within: timedelta) -> bool:
    """Whether the machine was heard of that recently, by the database's clock."""
    alive = sa.select(
        sa.exists().where(SandboxNode.id == node, SandboxNode.seen_at > sa.func.clock_timestamp() - within)
    )
    return bool(await session.scalar(alive))
