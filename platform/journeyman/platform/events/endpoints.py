"""``/tasks/{id}/events``: history and stream."""

from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import StreamingResponse
from starlette.types import Send

from journeyman.platform.events import service
from journeyman.platform.events.schemas import EventFilter, EventPage, EventView, StreamFilter, wanted
from journeyman.platform.events.stream import EventFeed
from journeyman.platform.http.dependencies import DatabaseDep, SessionDep, resource
from journeyman.platform.http.fields import refuse
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(prefix="/tasks", tags=["events"])

FeedDep = Annotated[EventFeed, Depends(resource(EventFeed))]


class EventStream(StreamingResponse):
    """Server-sent events; the generator is closed as soon as the client is gone."""

    media_type = "text/event-stream"

    async def stream_response(self, send: Send) -> None:
        iterator: Any = self.body_iterator
        async with aclosing(iterator):
            await super().stream_response(send)


@router.get("/{task_id}/events")
async def list_events(
    task_id: str, query: Annotated[EventFilter, Query()], principal: PrincipalDep, session: SessionDep
) -> EventPage:
    """What happened to the task, in order."""
    events, has_more = await service.history(session, principal.project_id, task_id, query)
    return EventPage(
        data=[EventView.of(event) for event in events],
        next_after=events[-1].seq if events else query.after,
        has_more=has_more,
    )


@router.get(
    "/{task_id}/events/stream",
    response_class=EventStream,
    responses={
        200: {
            "description": "`id:` is the event's seq, `event:` its type, `data:` the same JSON as in the history. "
            "After the task's last event comes `event: end`, and the stream closes.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def stream_events(
    task_id: str,
    query: Annotated[StreamFilter, Query()],
    principal: PrincipalDep,
    database: DatabaseDep,
    feed: FeedDep,
    last_event_id: Annotated[str | None, Header(description="Go on behind this seq; goes before `after`.")] = None,
) -> EventStream:
    """Everything behind `after`, then what happens as it happens. Can be resumed from any point."""
    after = query.after if last_event_id is None else _seq(last_event_id)
    async with database.transaction() as session:
        await tasks.read(session, principal.project_id, task_id)
    return EventStream(
        feed.follow(task_id, after, wanted(query.types)),
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )


def _seq(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise refuse("Last-Event-ID", "must be the seq of an event: a number from 0.")
    return int(value)
