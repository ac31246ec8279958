"""Artifacts: bytes in object storage by digest, a row that names them, an event that tells of them."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.artifacts.models import Artifact
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.object_store import ObjectStore, blob_key


async def add(
    session: AsyncSession,
    *,
    project_id: str,
    task_id: str,
    kind: str,
    name: str,
    media_type: str,
    size: int,
    digest: str,
    key: str,
) -> str:
    """Name bytes that are stored already; once per ``key``. Tool outputs get no event: their result's event has the id."""
    artifact_id = derived_id("artifact", task_id, kind, key)
    if await session.get(Artifact, artifact_id) is not None:
        return artifact_id
    session.add(
        Artifact(
            id=artifact_id,
            project_id=project_id,
            task_id=task_id,
            kind=kind,
            name=name,
            media_type=media_type,
            size=size,
            digest=digest,
        )
    )
    await session.flush()
    if kind != "tool_output":
        await append(
            session,
            task_id,
            EventType.ARTIFACT_CREATED,
            {"artifact_id": artifact_id, "kind": kind, "name": name, "media_type": media_type, "size": size},
            step_key=step_keys.part(artifact_id, "created"),
        )
    return artifact_id


async def find(session: AsyncSession, task_id: str, artifact_id: str) -> Artifact | None:
    return await session.scalar(sa.select(Artifact).where(Artifact.id == artifact_id, Artifact.task_id == task_id))


async def content(store: ObjectStore, artifact: Artifact) -> bytes:
    """The artifact's bytes."""
    return await store.get(blob_key(artifact.project_id, artifact.digest))
