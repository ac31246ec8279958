"""Reading what tasks hand over."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.artifacts import queries
from journeyman.platform.artifacts.models import Artifact, Receipt
from journeyman.platform.kit.errors import NotFound
from journeyman.platform.kit.ids import is_id
from journeyman.platform.tasks import service as tasks


async def artifacts(session: AsyncSession, project_id: str, task_id: str, *, kind: str | None) -> Sequence[Artifact]:
    """See :func:`.queries.artifacts_of`. Raises :class:`NotFound` for a task that the project does not have."""
    await tasks.read(session, project_id, task_id)
    return await queries.artifacts_of(session, task_id, kind=kind)


async def artifact(session: AsyncSession, project_id: str, artifact_id: str) -> Artifact:
    """Raises :class:`NotFound`, also for another project's."""
    found = await queries.artifact(session, project_id, artifact_id) if is_id("artifact", artifact_id) else None
    if found is None:
        raise NotFound(f"This project has no artifact {artifact_id[:80]}.")
    return found


async def receipts(session: AsyncSession, project_id: str, task_id: str) -> Sequence[Receipt]:
    """Of all attempts, in the order of running. Raises :class:`NotFound`."""
    await tasks.read(session, project_id, task_id)
    return await queries.receipts_of(session, task_id)
