"""The event log's history, page by page."""

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events import repository
from journeyman.platform.events.models import Event
from journeyman.platform.events.schemas import EventFilter
from journeyman.platform.tasks import service as tasks


async def history(
    session: AsyncSession, project_id: str, task_id: str, wanted: EventFilter
) -> tuple[list[Event], bool]:
    """One page in order, and whether there is more behind it now."""
    await tasks.read(session, project_id, task_id)
    found = await repository.after(session, task_id, wanted.after, limit=wanted.limit + 1, types=wanted.types)
    return list(found[: wanted.limit]), len(found) > wanted.limit
