"""A task's blackboard as the API shows it."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from journeyman.platform.board.models import Kind
from journeyman.platform.board.repository import Posted
from journeyman.platform.http.pagination import DEFAULT_LIMIT, PageLimit
from journeyman.platform.plans.models import Plan, Subtask


class BoardFilter(BaseModel):
    """Query of ``GET /tasks/{id}/board``."""

    model_config = ConfigDict(extra="forbid")

    kind: list[Kind] = []
    open: bool = False
    """Only promises that nobody has closed."""
    cursor: Annotated[str, Field(max_length=500)] | None = None
    limit: PageLimit = DEFAULT_LIMIT


class SubtaskState(BaseModel):
    """A subtask in short, and how far it is."""

    id: str
    title: str
    depends_on: list[str]
    state: str


class PlanStateView(BaseModel):
    """The newest plan in short; all of it is at ``…/plan``."""

    revision: int
    subtasks: list[SubtaskState]

    @classmethod
    def of(cls, plan: Plan, progress: list[Subtask]) -> "PlanStateView":
        states = {row.subtask_id: row.state for row in progress}
        return cls(
            revision=plan.revision,
            subtasks=[
                SubtaskState(
                    id=planned["id"],
                    title=planned["title"],
                    depends_on=planned.get("depends_on") or [],
                    state=states.get(planned["id"], "pending"),
                )
                for planned in plan.subtasks
            ],
        )


class NoteView(BaseModel):
    """A note on the board."""

    number: int
    """From 1 in each task."""
    kind: str
    text: str
    role: str
    thread_id: str | None
    subtask_id: str | None
    closes: int | None
    """Number of the promise that this note closes."""
    closed_by: int | None
    """Number of the note that closes this promise."""
    event_seq: int
    created_at: datetime

    @classmethod
    def of(cls, posted: Posted) -> "NoteView":
        note = posted.note
        return cls(
            number=note.seq,
            kind=note.kind,
            text=note.text,
            role=note.role,
            thread_id=note.thread_id,
            subtask_id=note.subtask_id,
            closes=note.closes,
            closed_by=posted.closed_by,
            event_seq=note.event_seq,
            created_at=note.created_at,
        )


class BoardView(BaseModel):
    """The plan's state (null before there is a plan), and notes, newest first."""

    plan: PlanStateView | None
    data: list[NoteView]
    next_cursor: str | None
