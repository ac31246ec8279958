"""Starting a task's workflow: the same way for a new task and for one whose workflow was lost."""

from datetime import timedelta
from typing import Final

from temporalio.client import Client
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from journeyman.platform.kit.names import TASK_WORKFLOW, WORKFLOW_TASK_TIMEOUT, Queue, task_workflow_id
from journeyman.platform.kit.telemetry import attached
from journeyman.platform.tasks.contract import StartTask

RPC_TIMEOUT: Final = timedelta(seconds=5)


async def start_task_workflow(client: Client, start: StartTask, *, again: bool = False, sandbox_queue: Queue) -> None:
    """Start it; one that runs already is left as it is. ``sandbox_queue``: see ``StartTask``.

    Raises :class:`temporalio.exceptions.WorkflowAlreadyStartedError` for one that has ended, unless it is to be started
    ``again``; then for one that runs.
    """
    conflict = WorkflowIDConflictPolicy.FAIL if again else WorkflowIDConflictPolicy.USE_EXISTING
    reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE if again else WorkflowIDReusePolicy.REJECT_DUPLICATE
    with attached(start.trace_context):
        await client.start_workflow(
            TASK_WORKFLOW,
            start.model_copy(update={"sandbox_queue": sandbox_queue}),
            id=task_workflow_id(start.task_id),
            task_queue=Queue.ORCHESTRATION,
            id_reuse_policy=reuse,
            id_conflict_policy=conflict,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            # What the workflow starts inherits it: a project with many tasks waits in line with itself.
            priority=Priority(fairness_key=start.project_id),
            rpc_timeout=RPC_TIMEOUT,
        )
