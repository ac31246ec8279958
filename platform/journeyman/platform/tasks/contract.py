"""What crosses between the platform and the workflows: states, and the typed input that starts a task.

Workflow code imports this module, so it does no I/O.
"""

from enum import StrEnum
from typing import Final

from pydantic import BaseModel

from journeyman.platform.kit.names import Queue


class TaskState(StrEnum):
    QUEUED = "queued"
    PREPARING = "preparing"
    PLANNING = "planning"
    AWAITING_APPROVAL = "awaiting_approval"
    RUNNING = "running"
    VERIFYING = "verifying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ERRORED = "errored"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.ERRORED, TaskState.CANCELLED})

_ENDS: Final = frozenset({TaskState.FAILED, TaskState.ERRORED, TaskState.CANCELLED})

PAUSE_REASONS: Final = (
    "user",
    "budget",
    "circuit_breaker",
    "model_unavailable",
    "model_account",
    "model_refused",
    "content_filtered",
    "context_exhausted",
)
"""What a task can wait for beside its state."""

ENDS_BY_ITSELF: Final = ("model_unavailable", "model_account")
"""Reasons to pause that end with the first call that the model answers: the workflow itself is not paused, it retries."""

TRANSITIONS: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.QUEUED: frozenset({TaskState.PREPARING, TaskState.PLANNING, TaskState.RUNNING}) | _ENDS,
    TaskState.PREPARING: frozenset({TaskState.PLANNING}) | _ENDS,
    TaskState.PLANNING: frozenset({TaskState.AWAITING_APPROVAL, TaskState.RUNNING}) | _ENDS,
    TaskState.AWAITING_APPROVAL: frozenset({TaskState.RUNNING, TaskState.PLANNING}) | _ENDS,
    # A rewind to where the plan was handed over has it approved anew.
    TaskState.RUNNING: frozenset({TaskState.VERIFYING, TaskState.PLANNING, TaskState.AWAITING_APPROVAL}) | _ENDS,
    TaskState.VERIFYING: frozenset({TaskState.SUCCEEDED, TaskState.PLANNING, TaskState.RUNNING}) | _ENDS,
    TaskState.SUCCEEDED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.ERRORED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}
"""Which state may follow which; planning comes again after a rejected plan or a failed verification. A fork leaves the queue
for where it goes on; a rewind leads back to planning or to running.
"""


class Phase(StrEnum):
    """Where in its course a task's workflow is: what it does next."""

    PREPARE = "prepare"
    PLAN = "plan"
    APPROVE = "approve"
    WORK = "work"
    VERIFY = "verify"


class SubtaskProgress(BaseModel):
    """Where a subtask is: what its workflow carries over when it continues as a new run, or begins with after a rewind."""

    round: int = 1
    coder: str | None = None
    """Id of the Coder's thread, once it is open."""
    coder_step: int = 0
    reviewer: str | None = None
    """Id of the Reviewer's thread, while a review goes on."""
    reviewer_step: int = 0
    conflicts: int = 0
    """How often the approved work conflicted with what others had merged meanwhile."""
    paused_for: str | None = None
    pause_version: int = 0
    """Number of the newest pause or resume that the task's workflow has signalled."""


class TaskProgress(BaseModel):
    """What a workflow carries over when it continues as a new run: references, counters and flags."""

    phase: Phase = Phase.PREPARE
    revision: int = 1
    last_revision: int = 1
    """The highest number that a revision was given: after a rewind, the next plan does not take an old one's."""
    plans: int = 1
    """Plans tried, this one among them; a rewind goes back to the number at the checkpoint."""
    reason: str | None = None
    """Why the plan before this revision was given up."""
    planner_step: int = 0
    done: list[str] = []
    """Completed subtasks of this revision."""
    subtasks: dict[str, SubtaskProgress] = {}
    """Subtasks that are to go on from where they were: set by a rewind or a fork, taken when each is started."""
    verifications: int = 0
    """Verifications that were begun: each has receipts of its own."""
    epoch: int = 0
    rewinds: list[str] = []
    """Ids of the newest rewinds that were applied."""
    paused_for: str | None = None


class StartTask(BaseModel):
    """Input of ``TaskWorkflow``. All else is read from the store under the task's id."""

    task_id: str
    project_id: str
    trace_context: dict[str, str] = {}
    progress: TaskProgress = TaskProgress()
    sandbox_queue: str = Queue.SANDBOXES
    """The task queue of work that needs a sandbox which is on no node yet."""
