"""Rewinds, forks and their preview as the API takes them and shows them."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from journeyman.platform.branching.models import Rewind
from journeyman.platform.checkpoints.diff import ChangeKind
from journeyman.platform.http.fields import (
    Input,
    Line,
    PlainText,
    at_most_bytes,
    not_blank,
)
from journeyman.platform.steering.schemas import MAX_TEXT
from journeyman.platform.submission.schemas import MAX_INSTRUCTION, Budget
from journeyman.platform.tasks.contract import Phase

CheckpointId = Annotated[Line, Field(max_length=80)]


class RewindTask(Input):
    """Go back to a checkpoint of this task."""

    checkpoint_id: CheckpointId
    message: Annotated[PlainText, AfterValidator(not_blank), at_most_bytes(MAX_TEXT)] | None = None
    """Told to the agents that go on from there: what to do differently this time."""


class ForkTask(Input):
    """Go on from a checkpoint in a new task."""

    checkpoint_id: CheckpointId
    instruction: Annotated[PlainText, AfterValidator(not_blank), at_most_bytes(MAX_INSTRUCTION)] | None = None
    """Default: that of the task. Another one is told to the agents that go on, and is the instruction of those that follow."""
    budget: Budget | None = None
    """Default: that of the task. What was spent up to the checkpoint counts against it."""


class RewindView(BaseModel):
    """A rewind. ``applied_at`` is null until it is done; a task that was cancelled meanwhile stays as it is."""

    id: str
    task_id: str
    checkpoint_id: str
    message: str | None
    epoch: int | None
    """How often the task has been rewound with this one."""
    requested_at: datetime
    applied_at: datetime | None

    @classmethod
    def of(cls, rewind: Rewind) -> "RewindView":
        return cls(
            id=rewind.id,
            task_id=rewind.task_id,
            checkpoint_id=rewind.checkpoint_id,
            message=rewind.message,
            epoch=rewind.epoch,
            requested_at=rewind.requested_at,
            applied_at=rewind.applied_at,
        )


class RewindList(BaseModel):
    """Newest first."""

    data: list[RewindView]


class SubtaskChange(BaseModel):
    """A subtask of the plan in force now or then; a state is null where the plan does not have it."""

    id: str
    title: str
    revision: int
    now: str | None
    then: str | None


class ThreadChange(BaseModel):
    """A conversation that is open now or was then."""

    role: str
    subtask_id: str | None
    revision: int
    attempt: int
    effect: Literal["goes_on", "kept", "opened_anew", "set_aside"]
    """``goes_on``: it is taken up at its cut. ``kept``: it had done its part. ``opened_anew``: it had no checkpoint yet.
    ``set_aside``: it was opened later.
    """
    messages_kept: int
    messages_set_aside: int


class PathChange(BaseModel):
    """What going back does to one path."""

    path: str
    """Below the workspace."""
    kind: ChangeKind


class FilesChange(BaseModel):
    """What going back does to the files of a workspace: that of a subtask at work, or (null) the head with all approved work."""

    subtask_id: str | None
    from_snapshot: str
    to_snapshot: str
    added: int
    modified: int
    deleted: int
    data: list[PathChange]
    """In the order of the paths, at most 1,000."""
    truncated: bool


class MessageSetAside(BaseModel):
    """What a person said after the checkpoint: agents are not told again."""

    number: int
    text: str


class SpentView(BaseModel):
    """What was spent up to a point."""

    tokens: int
    cost_usd: str
    """A decimal number, so that nothing is rounded."""
    steps: int
    """Model calls."""
    wall_s: int
    """Seconds of work."""


class PreviewView(BaseModel):
    """What a rewind to the checkpoint would change, and what a fork from it would begin with. Nothing is changed by asking."""

    checkpoint_id: str
    event_seq: int
    epoch: int
    created_at: datetime
    can_rewind: bool
    """False for a task that has ended or is being cancelled: fork it."""
    phase: Phase
    state_now: str
    state_then: str
    plan_revision_now: int
    plan_revision_then: int
    events_set_aside: int
    """They stay in the log."""
    subtasks: list[SubtaskChange]
    threads: list[ThreadChange]
    files: list[FilesChange]
    """Only workspaces that differ."""
    messages_set_aside: list[MessageSetAside]
    approvals_withdrawn: int
    spent: SpentView
    """By the task so far: it stays spent after a rewind."""
    inherited_by_fork: SpentView
    """Spent up to the checkpoint: it counts against the limits of a fork."""
