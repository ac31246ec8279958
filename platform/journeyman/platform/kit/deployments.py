"""Versions of the workflow code: which one new tasks begin with, which ones still carry tasks, and how tasks are moved.

Only the workers of the orchestration queue have a version, which is the fingerprint of their workflow code. Activities are
carried out by whatever worker is there: what passes to and from them only ever gains fields with defaults.
"""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PostResetOperation, VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    ResetWorkflowExecutionRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.kit.names import SUBTASK_WORKFLOW, TASK_WORKFLOW, Queue

DEPLOYMENT: Final = "journeyman"
"""Temporal's name for all workers of this platform together."""

SEEN: Final = timedelta(seconds=90)
"""A worker asks for work at least once a minute: one that has not asked for this long is gone."""

UNVERSIONED: Final = "unversioned"
"""In the place of a build id: tasks that workers without a version carry, or that none has touched yet."""


@dataclass(frozen=True)
class Version:
    """One version of the workflow code. ``workers`` poll for it now; ``tasks`` run on it."""

    build_id: str
    current: bool
    workers: int
    tasks: int

    @property
    def stranded(self) -> bool:
        """Tasks stand still, because the code that they began with runs nowhere."""
        return self.tasks > 0 and self.workers == 0 and self.build_id != UNVERSIONED


async def make_current(client: Client, build_id: str, *, unseen: bool = False) -> None:
    """Let new tasks, and those that move, run on this version. Raises :class:`Conflict` when no worker polls for it.

    With ``unseen`` it need not have a worker yet: for a worker that is about to start. :data:`UNVERSIONED` goes back to
    workers without versions.
    """
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace,
        deployment_name=DEPLOYMENT,
        build_id="" if build_id == UNVERSIONED else build_id,
        allow_no_pollers=unseen,
        ignore_missing_task_queues=unseen,
    )
    try:
        await client.workflow_service.set_worker_deployment_current_version(request)
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION}:
            raise Conflict(
                f"No orchestration worker of version {build_id} has been seen, so nothing was changed: new tasks would "
                "wait for one. Start its workers first.",
                code="no_workers",
            ) from error
        raise


async def current_version(client: Client) -> str | None:
    """The build id that new tasks begin with; None while workers have no versions."""
    known = await _described(client)
    return known[0] if known else None


async def versions(client: Client) -> list[Version]:
    """Every version that is current, has workers or carries tasks; the current one first."""
    described = await _described(client)
    current, known = described or (None, [])
    workers = await _workers(client)
    found = []
    for build_id in {*known, *workers}:
        if build_id == UNVERSIONED:
            continue
        tasks = await count_tasks(client, build_id)
        if tasks or build_id == current or workers.get(build_id):
            found.append(Version(build_id, build_id == current, workers.get(build_id, 0), tasks))
    rest = await client.count_workflows(f"{_TASKS} AND TemporalWorkerDeploymentVersion IS NULL")
    if rest.count or workers.get(UNVERSIONED):
        found.append(
            Version(UNVERSIONED, described is None or current is None, workers.get(UNVERSIONED, 0), rest.count)
        )
    return sorted(found, key=lambda version: (not version.current, version.build_id))


async def count_tasks(client: Client, build_id: str) -> int:
    """Running tasks whose workflow was last carried by this version."""
    return (await client.count_workflows(f"{_TASKS} AND {_on(build_id)}")).count


async def move(client: Client, *, away_from: str | None = None) -> int:
    """Have running tasks begin anew, on the current version, from where their workflow last continued as a new run.

    Nothing is done twice: every step finds under its key what was done. Signals are kept. It works however much the code
    differs, because nothing of the old history is replayed. ``away_from``: the build id that is to be left; otherwise every
    task that is not on the current version, unversioned ones among them. Returns how many were moved.
    """
    target = await current_version(client)
    if target is None:
        raise NotFound("There is no current version to move tasks to: workers have no versions here.")
    if away_from == target:
        raise Conflict(f"{target} is the current version: there is nowhere to move its tasks to.", code="same_version")
    if away_from is None:
        where = f"(TemporalWorkerDeploymentVersion IS NULL OR NOT {_on(target)})"
    elif away_from == UNVERSIONED:
        where = "TemporalWorkerDeploymentVersion IS NULL"
    else:
        where = _on(away_from)
    return sum([await _move(client, task_id, target) async for task_id in _ids(client, f"{_TASKS} AND {where}")])


_TASKS: Final = f"WorkflowType = '{TASK_WORKFLOW}' AND ExecutionStatus = 'Running'"


def _on(build_id: str) -> str:
    return f"TemporalWorkerDeploymentVersion = '{DEPLOYMENT}:{build_id}'"


async def _ids(client: Client, query: str) -> AsyncIterator[str]:
    async for execution in client.list_workflows(query):
        yield execution.id


async def _move(client: Client, task_id: str, target: str) -> bool:
    """Reset the current run to its first workflow task; its children are begun anew by it. False when it has ended."""
    handle = client.get_workflow_handle(task_id)
    try:
        described = await handle.describe()
        started = None
        async for event in handle.fetch_history_events(page_size=20):
            if event.HasField("workflow_task_started_event_attributes"):
                started = event.event_id
                break
        if started is None or described.raw_description.workflow_execution_info.close_time.seconds:
            return False  # it has not begun, and begins on the current version
        version = WorkerDeploymentVersion(deployment_name=DEPLOYMENT, build_id=target)
        override = VersioningOverride(one_time=VersioningOverride.OneTimeOverride(target_deployment_version=version))
        routed = PostResetOperation.UpdateWorkflowOptions(
            workflow_execution_options=WorkflowExecutionOptions(versioning_override=override),
            update_mask=FieldMask(paths=["versioning_override"]),
        )
        await client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=task_id, run_id=described.run_id),
                reason=f"moved to version {target}",
                # The event after: the one with which that workflow task was completed or failed.
                workflow_task_finish_event_id=started + 1,
                # The same for whoever moves this run to this version: two that do so at once do it once.
                request_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{described.run_id}/{target}")),
                post_reset_operations=[PostResetOperation(update_workflow_options=routed)],
            )
        )
        # The new run ends a child of the old one when it begins it anew. One that it does not come to ends here.
        for child in described.raw_description.pending_children:
            await _end_child(client, child.workflow_id, child.run_id)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def _end_child(client: Client, workflow_id: str, run_id: str) -> None:
    try:
        current = await client.get_workflow_handle(workflow_id).describe()
        first = current.raw_description.workflow_execution_info.first_run_id
        if current.workflow_type == SUBTASK_WORKFLOW and first == run_id:
            await client.get_workflow_handle(workflow_id, run_id=current.run_id).terminate("its task was moved")
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


async def _described(client: Client) -> tuple[str | None, list[str]] | None:
    """Build id of the current version, and all build ids; None when there never was a worker with a version."""
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=DEPLOYMENT)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise
    info = answer.worker_deployment_info
    current = info.routing_config.current_deployment_version.build_id
    return current or None, [summary.deployment_version.build_id for summary in info.version_summaries]


async def _workers(client: Client) -> dict[str, int]:
    """How many processes poll for workflow tasks, by build id."""
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=Queue.ORCHESTRATION),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    pollers: dict[str, set[str]] = {}
    for poller in answer.pollers:
        if now() - poller.last_access_time.ToDatetime(tzinfo=now().tzinfo) < SEEN:
            pollers.setdefault(poller.deployment_options.build_id or UNVERSIONED, set()).add(poller.identity)
    return {build_id: len(identities) for build_id, identities in pollers.items()}
