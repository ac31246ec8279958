"""Uploads in PostgreSQL."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.uploads.models import Upload


async def add(session: AsyncSession, upload: Upload) -> None:
    session.add(upload)
    await session.flush()


async def snapshot_of(session: AsyncSession, project_id: str, upload_id: str) -> str | None:
    """Digest of the snapshot that was made of an upload; None when the project has no such upload."""
    return await session.scalar(
        sa.select(Upload.snapshot).where(Upload.id == upload_id, Upload.project_id == project_id)
    )
