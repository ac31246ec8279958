"""What crosses between the platform and the workflows: states, and the typed input that starts a task.

Workflow code imports this module, so it does no I/O.
"""

from enum import StrEnum
from typing import Final

from pydantic import BaseModel


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

TRANSITIONS: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.QUEUED: frozenset({TaskState.PREPARING}) | _ENDS,
    TaskState.PREPARING: frozenset({TaskState.PLANNING}) | _ENDS,
    TaskState.PLANNING: frozenset({TaskState.AWAITING_APPROVAL, TaskState.RUNNING}) | _ENDS,
    TaskState.AWAITING_APPROVAL: frozenset({TaskState.RUNNING, TaskState.PLANNING}) | _ENDS,
    TaskState.RUNNING: frozenset({TaskState.VERIFYING, TaskState.PLANNING}) | _ENDS,
    TaskState.VERIFYING: frozenset({TaskState.SUCCEEDED, TaskState.PLANNING}) | _ENDS,
    TaskState.SUCCEEDED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.ERRORED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}
"""Which state may follow which; planning comes again after a rejected plan or a failed verification."""


class StartTask(BaseModel):
    """Input of ``TaskWorkflow``. All else is read from the store under the task's id."""

    task_id: str
    project_id: str
    trace_context: dict[str, str] = {}
