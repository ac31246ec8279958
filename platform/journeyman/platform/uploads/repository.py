"""Uploads in PostgreSQL."""

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.uploads.models import Upload


async def add(session: AsyncSession, upload: Upload) -> None:
    session.add(upload)
    await session.flush()
