"""Memories as the API shows and takes them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from journeyman.platform.http.fields import Input, PlainText, not_blank
from journeyman.platform.http.pagination import DEFAULT_LIMIT, PageLimit
from journeyman.platform.memory.models import Kind, Memory, MemoryChange, Origin

State = Literal["live", "superseded", "deleted"]

Text = Annotated[PlainText, Field(min_length=1, max_length=4000), AfterValidator(not_blank)]
Query = Annotated[PlainText, Field(min_length=1, max_length=2000), AfterValidator(not_blank)]
MemoryId = Annotated[PlainText, Field(max_length=80)]


class MemoryFilter(BaseModel):
    """Query of ``GET /memory``."""

    model_config = ConfigDict(extra="forbid")

    kind: list[Kind] = []
    """Memories of any of these kinds."""
    origin: list[Origin] = []
    task_id: Annotated[PlainText, Field(max_length=80)] | None = None
    """What this task wrote."""
    state: Literal["live", "superseded", "deleted", "all"] = "live"
    cursor: Annotated[str, Field(max_length=500)] | None = None
    limit: PageLimit = DEFAULT_LIMIT


class AddMemory(Input):
    """What a person tells the project's agents."""

    text: Text
    kind: Kind = "fact"
    supersedes: MemoryId | None = None
    """A memory that this one takes the place of."""


class EditMemory(Input):
    """What is to change; what is left out stays."""

    text: Text | None = None
    kind: Kind | None = None


class SearchMemory(Input):
    """A question in plain words."""

    query: Query
    limit: PageLimit = 10
    kinds: Annotated[list[Kind], Field(max_length=3)] = []


class MemoryView(BaseModel):
    """Something that the project knows. ``state``: only a live memory is ever recalled."""

    id: str
    kind: str
    text: str
    origin: str
    state: State
    task_id: str | None
    source_event_id: str | None
    confirmations: int
    """How often it was written again."""
    uses: int
    """How often agents were shown it."""
    last_used_at: datetime | None
    superseded_by: str | None
    indexed: bool
    """Whether search finds it already; false for a moment after each change, and while the index is down."""
    edited_at: datetime | None
    """When a person last corrected or vouched for it."""
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None

    @classmethod
    def of(cls, memory: Memory) -> "MemoryView":
        return cls(**_fields(memory))


class MemoryPage(BaseModel):
    """Newest first."""

    data: list[MemoryView]
    next_cursor: str | None


class SourceView(BaseModel):
    """The task that wrote it, and the event that tells when and where."""

    task_id: str
    task_title: str
    task_state: str
    event_id: str | None
    event_seq: int | None
    thread_id: str | None
    subtask_id: str | None


class ChangeView(BaseModel):
    """``text`` and ``kind`` as they were before. Either a person did it (``api_key_id``), a task (``event_id``) or the index."""

    action: str
    """``added``, ``confirmed``, ``edited``, ``superseded``, ``restored`` or ``deleted``."""
    time: datetime
    api_key_id: str | None
    event_id: str | None
    other_id: str | None
    """The memory that superseded it, or whose deletion restored it."""
    kind: str
    text: str

    @classmethod
    def of(cls, change: MemoryChange) -> "ChangeView":
        return cls(
            action=change.action,
            time=change.created_at,
            api_key_id=change.api_key_id,
            event_id=change.event_id,
            other_id=change.other_id,
            kind=change.kind,
            text=change.text,
        )


class MemoryDetail(MemoryView):
    """A memory that can be traced: where it comes from, what it replaced, and who changed it."""

    source: SourceView | None
    """Null for what a person added."""
    supersedes: list[str]
    history: list[ChangeView]

    @classmethod
    def traced(
        cls, memory: Memory, source: SourceView | None, supersedes: Sequence[Memory], history: Sequence[MemoryChange]
    ) -> "MemoryDetail":
        return cls(
            **_fields(memory),
            source=source,
            supersedes=[replaced.id for replaced in supersedes],
            history=[ChangeView.of(change) for change in history],
        )


class FoundMemory(MemoryView):
    """A memory that fits a query."""

    score: float
    """Cosine similarity to the query."""
    rank: float
    """What the results are sorted by: the score corrected by age, use, confirmation and source."""

    @classmethod
    def found(cls, memory: Memory, score: float, rank: float) -> "FoundMemory":
        return cls(**_fields(memory), score=score, rank=rank)


class SearchResult(BaseModel):
    """Best first. ``degraded``: the index or the embedder did not answer in time; found by words alone."""

    data: list[FoundMemory]
    degraded: bool


class DeletedMemories(BaseModel):
    """What was deleted of a task's memories, and what was kept because a person has corrected it."""

    task_id: str
    deleted: list[str]
    kept: list[str]


def _fields(memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "kind": memory.kind,
        "text": memory.text,
        "origin": memory.origin,
        "state": _state(memory),
        "task_id": memory.task_id,
        "source_event_id": memory.source_event_id,
        "confirmations": memory.confirmations,
        "uses": memory.uses,
        "last_used_at": memory.last_used_at,
        "superseded_by": memory.superseded_by,
        "indexed": memory.live and memory.indexed_at is not None,
        "edited_at": memory.edited_at,
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
        "deleted_at": memory.deleted_at,
    }


def _state(memory: Memory) -> State:
    if memory.deleted_at is not None:
        return "deleted"
    return "superseded" if memory.superseded_by is not None else "live"


class MemorySettings(Input):
    """What the tasks of the project may do with its memory."""

    read: bool | None = None
    """Recall what earlier tasks left."""
    write: bool | None = None
    """Keep what is learnt for later tasks."""


class MemorySettingsView(BaseModel):
    """What the tasks of the project may do with its memory."""

    read: bool
    write: bool
