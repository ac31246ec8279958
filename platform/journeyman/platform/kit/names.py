"""The one place where Temporal's queues, workflow names and ids are spelt. Workflow code imports it: no I/O here."""

from datetime import timedelta
from enum import StrEnum
from typing import Final

TASK_WORKFLOW: Final = "TaskWorkflow"
SUBTASK_WORKFLOW: Final = "SubtaskWorkflow"

SIGNAL_CANCEL: Final = "cancel"
SIGNAL_PAUSE: Final = "pause"
SIGNAL_RESUME: Final = "resume"
SIGNAL_PAUSE_STATE: Final = "pause_state"
"""From a task's workflow to those of its subtasks. Arguments: number of the change, and what the task is paused for, or null."""
SIGNAL_INTERRUPT: Final = "interrupt"
"""A person's message is to be read now: the call in progress is cancelled, the step goes on with the message."""
SIGNAL_DECIDED: Final = "decided"
"""Argument: id of an approval that was decided."""
SIGNAL_REWIND: Final = "rewind"
"""Argument: id of the rewind."""


WORKFLOW_TASK_TIMEOUT: Final = timedelta(seconds=3)
"""How long a worker may take over one workflow task before another gets it; bounds the takeover of a task whose worker was
killed in the middle of one (the server's default is 10 s)."""


class Queue(StrEnum):
    """Task queues, one for each worker role, so that work in sandboxes cannot starve workflows."""

    ORCHESTRATION = "orchestration"
    SANDBOXES = "sandboxes"


def node_queue(node: str) -> str:
    """The task queue of work whose sandbox is on this node: only the node's own workers poll it."""
    return f"{Queue.SANDBOXES}/{node}"


def task_workflow_id(task_id: str) -> str:
    return task_id


def subtask_workflow_id(task_id: str, subtask_id: str, plan_revision: int, epoch: int = 0) -> str:
    return f"{task_id}/subtask/{epoch}/{plan_revision}/{subtask_id}"
