"""Idempotency keys in PostgreSQL, always within one project."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.idempotency.models import IdempotencyKey
from journeyman.platform.kit.clock import now


async def take(session: AsyncSession, project_id: str, key: str, request_digest: str, subject_id: str) -> bool:
    """Whether the key was free; then it is taken. Waits for another transaction that is about to take it."""
    taken = await session.scalar(
        insert(IdempotencyKey)
        .values(project_id=project_id, key=key, request_digest=request_digest, subject_id=subject_id, created_at=now())
        .on_conflict_do_nothing()
        .returning(IdempotencyKey.subject_id)
    )
    return taken is not None


async def get(session: AsyncSession, project_id: str, key: str) -> IdempotencyKey:
    """A key that is taken."""
    return (
        await session.scalars(
            sa.select(IdempotencyKey).where(IdempotencyKey.project_id == project_id, IdempotencyKey.key == key)
        )
    ).one()


async def set_subject(session: AsyncSession, project_id: str, key: str, subject_id: str) -> None:
    """Note what the command under the key made or changed."""
    await session.execute(
        sa.update(IdempotencyKey)
        .where(IdempotencyKey.project_id == project_id, IdempotencyKey.key == key)
        .values(subject_id=subject_id)
    )
