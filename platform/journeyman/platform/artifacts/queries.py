"""Reading artifacts and receipts."""

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
    """The task's receipts, in the order in which the commands were run."""
    rows = await session.scalars(
        sa.select(Receipt).where(Receipt.task_id == task_id).order_by(Receipt.attempt, Receipt.position)
    )
    return rows.all()


async def receipt(session: AsyncSession, task_id: str, attempt: int, position: int) -> Receipt | None:
    """Of one command in one attempt at the verification; both as in :class:`Receipt`."""
    return await session.scalar(
        sa.select(Receipt).where(Receipt.task_id == task_id, Receipt.attempt == attempt, Receipt.position == position)
    )
