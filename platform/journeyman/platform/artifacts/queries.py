"""Reading artifacts and receipts for the API."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.artifacts.models import Artifact, Receipt


async def artifacts_of(session: AsyncSession, task_id: str, *, kind: str | None) -> Sequence[Artifact]:
    """The task's artifacts, oldest first. Tool outputs are told of in events; they come only when asked for."""
    statement = sa.select(Artifact).where(Artifact.task_id == task_id).order_by(Artifact.created_at, Artifact.id)
    statement = statement.where(Artifact.kind == kind if kind is not None else Artifact.kind != "tool_output")
    return (await session.scalars(statement)).all()


async def artifact(session: AsyncSession, project_id: str, artifact_id: str) -> Artifact | None:
    return await session.scalar(
        sa.select(Artifact).where(Artifact.id == artifact_id, Artifact.project_id == project_id)
    )


async def receipts_of(session: AsyncSession, task_id: str) -> Sequence[Receipt]:
    rows = await session.scalars(
        sa.select(Receipt).where(Receipt.task_id == task_id).order_by(Receipt.attempt, Receipt.position)
    )
    return rows.all()
