"""The outbox's rows: claiming, settling, counting."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.text import cleaned
from journeyman.platform.outbox.models import OutboxEntry

MAX_ERROR = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Claimed:
    """A row this process delivers now. ``attempts`` counts this attempt too."""

    id: int
    project_id: str
    task_id: str
    kind: str
    payload: Json
    attempts: int


async def claim(session: AsyncSession, *, limit: int, lease: timedelta) -> list[Claimed]:
    """Take rows that are due, the oldest undelivered one of each task at most.

    A claim is a date in the future rather than a lock, so that no connection is held while Temporal is asked; if the
    process dies meanwhile, the row is due again after ``lease``.
    """
    earlier = aliased(OutboxEntry)
    moment = now()
    due = (
        sa.select(OutboxEntry.id)
        .where(
            OutboxEntry.delivered_at.is_(None),
            OutboxEntry.next_attempt_at <= moment,
            ~sa.exists().where(
                earlier.task_id == OutboxEntry.task_id,
                earlier.delivered_at.is_(None),
                earlier.id < OutboxEntry.id,
            ),
        )
        .order_by(OutboxEntry.next_attempt_at, OutboxEntry.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = await session.execute(
        sa.update(OutboxEntry)
        .where(OutboxEntry.id.in_(due.scalar_subquery()))
        .values(attempts=OutboxEntry.attempts + 1, next_attempt_at=moment + lease)
        .returning(
            OutboxEntry.id,
            OutboxEntry.project_id,
            OutboxEntry.task_id,
            OutboxEntry.kind,
            OutboxEntry.payload,
            OutboxEntry.attempts,
        )
        .execution_options(synchronize_session=False)
    )
    return sorted((Claimed(*row) for row in rows), key=lambda entry: entry.id)


async def add(session: AsyncSession, entry: OutboxEntry) -> None:
    session.add(entry)
    await session.flush()


async def notify(session: AsyncSession, channel: str, task_id: str) -> None:
    """Wake whoever delivers, once this transaction is committed."""
    await session.execute(sa.select(sa.func.pg_notify(channel, task_id)))


async def settle_untried(session: AsyncSession, task_id: str, kind: str, why: str) -> bool:
    """Count the task's row of that kind as done without delivering it. False when it was attempted already, or is not there."""
    settled = await session.scalar(
        sa.update(OutboxEntry)
        .where(
            OutboxEntry.task_id == task_id,
            OutboxEntry.kind == kind,
            OutboxEntry.delivered_at.is_(None),
            OutboxEntry.attempts == 0,
        )
        .values(delivered_at=now(), last_error=why)
        .returning(OutboxEntry.id)
        .execution_options(synchronize_session=False)
    )
    return settled is not None


async def delivered(session: AsyncSession, entry_ids: Sequence[int]) -> None:
    """Note that these have arrived."""
    await session.execute(
        sa.update(OutboxEntry)
        .where(OutboxEntry.id.in_(entry_ids))
        .values(delivered_at=now())
        .execution_options(synchronize_session=False)
    )


async def failed(session: AsyncSession, entry_id: int, error: str, *, retry_in: timedelta) -> None:
    """Note why a row was not delivered, and when it is due again."""
    await session.execute(
        sa.update(OutboxEntry)
        .where(OutboxEntry.id == entry_id, OutboxEntry.delivered_at.is_(None))
        .values(last_error=cleaned(error)[:MAX_ERROR], next_attempt_at=now() + retry_in)
        .execution_options(synchronize_session=False)
    )


async def hurry(session: AsyncSession, *, within: timedelta) -> None:
    """Make rows due that wait after a failure; ``within`` is the longest such wait."""
    moment = now()
    await session.execute(
        sa.update(OutboxEntry)
        .where(
            OutboxEntry.delivered_at.is_(None),
            OutboxEntry.last_error.is_not(None),
            OutboxEntry.next_attempt_at > moment,
            OutboxEntry.next_attempt_at <= moment + within,
        )
        .values(next_attempt_at=moment)
        .execution_options(synchronize_session=False)
    )


async def pending(session: AsyncSession) -> tuple[int, float]:
    """How many rows are not delivered, and the age in seconds of the oldest."""
    undelivered = OutboxEntry.delivered_at.is_(None)
    count = await session.scalar(sa.select(sa.func.count()).select_from(OutboxEntry).where(undelivered))
    oldest: datetime | None = await session.scalar(sa.select(sa.func.min(OutboxEntry.created_at)).where(undelivered))
    return count or 0, (now() - oldest).total_seconds() if oldest is not None else 0.0
