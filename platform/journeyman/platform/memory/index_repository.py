"""Rows that the index is to follow: claimed, settled, postponed, counted."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.memory.models import Memory
from journeyman.platform.memory.repository import LIVE


class Due(NamedTuple):
    """A memory whose vector must follow its row. ``claim`` tells this claim from a later one."""

    id: str
    project_id: str
    kind: str
    text: str
    revision: int
    live: bool
    claim: datetime


async def claim_due(
    session: AsyncSession, *, project_id: str | None, grace: timedelta, lease: timedelta, limit: int
) -> list[Due]:
    """Take rows that the index is to follow, longest due first.

    Like the outbox's, a claim is a date in the future and no lock: whoever dies with it leaves rows that are due again.
    Rows younger than ``grace`` are left to whoever wrote them.
    """
    moment = now()
    claim = moment + lease
    wanted = sa.select(Memory.id).where(Memory.index_due_at <= moment - grace)
    if project_id is not None:
        wanted = wanted.where(Memory.project_id == project_id)
    wanted = wanted.order_by(Memory.index_due_at, Memory.id).limit(limit).with_for_update(skip_locked=True)
    rows = await session.execute(
        sa.update(Memory)
        .where(Memory.id.in_(wanted.scalar_subquery()))
        .values(index_due_at=claim)
        .returning(
            Memory.id,
            Memory.project_id,
            Memory.kind,
            Memory.text,
            Memory.revision,
            LIVE.label("live"),
        )
        .execution_options(synchronize_session=False)
    )
    return sorted((Due._make([*row, claim]) for row in rows), key=lambda due: due.id)


async def settle(session: AsyncSession, due: Due) -> bool:
    """Note that the index has followed the row. False when the row has changed since the claim, and is due again."""
    settled = await session.scalar(
        sa.update(Memory)
        .where(Memory.id == due.id, Memory.revision == due.revision, Memory.index_due_at == due.claim)
        .values(index_due_at=None, indexed_at=now() if due.live else None)
        .returning(Memory.id)
        .execution_options(synchronize_session=False)
    )
    return settled is not None


async def postpone(session: AsyncSession, dues: Sequence[Due], *, by: timedelta) -> None:
    """Give claims back, to be taken again later."""
    for due in dues:
        await session.execute(
            sa.update(Memory)
            .where(Memory.id == due.id, Memory.index_due_at == due.claim)
            .values(index_due_at=now() + by)
            .execution_options(synchronize_session=False)
        )


async def index_all(session: AsyncSession) -> None:
    """Have every vector written anew."""
    await session.execute(
        sa.update(Memory)
        .where(LIVE, Memory.index_due_at.is_(None))
        .values(index_due_at=now())
        .execution_options(synchronize_session=False)
    )


async def unindexed(session: AsyncSession) -> int:
    """How many rows the index has not followed yet."""
    statement = sa.select(sa.func.count()).select_from(Memory).where(Memory.index_due_at.is_not(None))
    return await session.scalar(statement) or 0
