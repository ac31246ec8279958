"""Events as everybody sees them: list, stream and webhooks show the same document."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from journeyman.platform.events.models import Event
from journeyman.platform.events.repository import EventRow
from journeyman.platform.events.types import EventType
from journeyman.platform.http.pagination import DEFAULT_LIMIT, PageLimit
from journeyman.platform.kit.database import Json


class EventView(BaseModel):
    """One event. ``seq`` counts from 1 within its task, without a gap."""

    id: str
    seq: int
    task_id: str
    type: str
    time: datetime
    thread_id: str | None
    subtask_id: str | None
    data: Json

    @classmethod
    def of(cls, event: Event | EventRow) -> "EventView":
        # Straight from our own table: what was validated when it was written is not validated for each reader.
        return cls.model_construct(
            id=event.id,
            seq=event.seq,
            task_id=event.task_id,
            type=event.type,
            time=event.time,
            thread_id=event.thread_id,
            subtask_id=event.subtask_id,
            data=event.data,
        )


class EventPage(BaseModel):
    """In order. Go on with ``after`` = ``next_after`` while ``has_more``."""

    data: list[EventView]
    next_after: int
    has_more: bool


_KNOWN: Final = frozenset(EventType)


def _types(value: list[str]) -> list[str]:
    names = [name.strip() for entry in value for name in entry.split(",") if name.strip()]
    for name in names:
        if name not in _KNOWN:
            raise ValueError(f"there is no event type {name[:60]!r}")
    return names


EventTypes = Annotated[list[str], Field(max_length=100), AfterValidator(_types)]
"""Names of event types, each in its own parameter or separated by commas."""

Seq = Annotated[int, Field(ge=0, le=2**62)]


class EventFilter(BaseModel):
    """Query of ``GET …/events``."""

    model_config = ConfigDict(extra="forbid")

    after: Seq = 0
    types: EventTypes = []
    limit: PageLimit = DEFAULT_LIMIT


class StreamFilter(BaseModel):
    """Query of ``GET …/events/stream``."""

    model_config = ConfigDict(extra="forbid")

    after: Seq = 0
    types: EventTypes = []


Wanted = Callable[[str], bool]


def wanted(types: list[str]) -> Wanted:
    """Whether an event of a type passes; without types all do."""
    chosen = frozenset(types)
    return chosen.__contains__ if chosen else lambda _: True
