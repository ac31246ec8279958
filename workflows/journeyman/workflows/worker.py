"""A worker process: builds its resources, polls the queues of its roles, and drains before it ends."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from journeyman.platform import tables
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.egress.addresses import AddressPolicy
from journeyman.platform.inference.client import OpenAIModelEngine
from journeyman.platform.inference.port import ModelEngine
from journeyman.platform.kit import telemetry
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.names import Queue, node_queue
from journeyman.platform.kit.object_store import ObjectStore
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.temporal import connect
from journeyman.platform.leases.admission import Capacity
from journeyman.platform.leases.nodes import NodeKeeper
from journeyman.platform.leases.service import Leases
from journeyman.platform.memory.service import MemoryService, memory_service
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import SandboxDriver
from journeyman.workflows import timing
from journeyman.workflows.activities.approvals import ApprovalActivities
from journeyman.workflows.activities.branching import BranchingActivities
from journeyman.workflows.activities.checkpointing import Checkpointer
from journeyman.workflows.activities.conversation import ConversationActivities
from journeyman.workflows.activities.execution import ToolCallExecutor
from journeyman.workflows.activities.handover import HandoverActivities
from journeyman.workflows.activities.integration import IntegrationActivities
from journeyman.workflows.activities.lifecycle import LifecycleActivities
from journeyman.workflows.activities.model_call import ModelCaller
from journeyman.workflows.activities.preparation import PreparationActivities
from journeyman.workflows.activities.segments import ContextWindow
from journeyman.workflows.activities.steps import StepActivities
from journeyman.workflows.activities.thread_sandbox import ThreadSandboxes
from journeyman.workflows.activities.verification import VerificationActivities
from journeyman.workflows.failures import FailureInterceptor
from journeyman.workflows.subtask_workflow import SubtaskWorkflow
from journeyman.workflows.task_workflow import TaskWorkflow
from journeyman.workflows.versioning import WorkerVersion

logger = logging.getLogger(__name__)

WORKFLOWS: Final = (TaskWorkflow, SubtaskWorkflow)

DRAIN: Final = timedelta(seconds=20)
"""How long activities may finish after SIGTERM; what is not done then goes on elsewhere."""

CACHED_WORKFLOWS: Final = 128
"""Workflows kept in memory, some 100 KB each (measured): twice what 50 tasks at work on one machine need. The longest idle are
dropped first, and read their history again when something happens to them."""

SLOTS: Final = {Queue.ORCHESTRATION: 64, Queue.SANDBOXES: 124}
"""Activities at once in one process, for each queue. Steps mostly wait for a model."""


@dataclass(frozen=True)
class Resources:
    """What activities work with."""

    database: Database
    store: ObjectStore
    driver: SandboxDriver
    engine: ModelEngine
    memory: MemoryService
    model_idle_timeout_s: float
    window: ContextWindow
    git_addresses: AddressPolicy
    single_node: bool
    """See ``Settings.single_node``."""
    capacity: Capacity


@asynccontextmanager
async def open_resources(settings: Settings) -> AsyncIterator[Resources]:
    """The production resources of a worker, closed at the end of the block."""
    # Foreign keys are resolved by name: every table must be known before the first statement.
    assert tables.metadata.sorted_tables
    database = Database(
        create_engine(
            settings.database_url, pool_size=settings.database_pool_size, application_name="journeyman-worker"
        )
    )
    driver = LocalSandboxDriver(settings.sandbox_dir, allow_unenforced_limits=settings.sandbox_allow_unenforced_limits)
    engine = OpenAIModelEngine.from_settings(settings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        stack.push_async_callback(driver.close)
        stack.push_async_callback(engine.close)
        yield Resources(
            database=database,
            store=S3ObjectStore.from_settings(settings),
            driver=driver,
            engine=engine,
            memory=memory_service(settings, database, stack),
            model_idle_timeout_s=settings.model_timeout_s,
            window=ContextWindow(settings.model_context_tokens, settings.model_max_output_tokens),
            git_addresses=AddressPolicy.for_git(settings),
            single_node=settings.single_node,
            capacity=Capacity.from_settings(settings),
        )


def activities_by_queue(resources: Resources) -> dict[Queue, list[Callable[..., Any]]]:
    """The activities that workers of each queue execute."""
    snapshots = SnapshotStore(resources.store)
    leases = Leases(resources.database, resources.driver, snapshots, resources.capacity)
    approvals = ApprovalActivities(resources.database)
    lifecycle = LifecycleActivities(resources.database, leases)
    branching = BranchingActivities(resources.database, leases)
    conversation = ConversationActivities(resources.database, snapshots, resources.memory)
    preparation = PreparationActivities(resources.database, leases, snapshots, addresses=resources.git_addresses)
    sandboxes = ThreadSandboxes(leases, snapshots)
    steps = StepActivities(
        resources.database,
        ModelCaller(
            resources.database, resources.engine, idle_timeout_s=resources.model_idle_timeout_s, window=resources.window
        ),
        ToolCallExecutor(resources.database, resources.store, sandboxes, resources.memory),
        Checkpointer(resources.database, sandboxes),
        sandboxes,
        node=None if resources.single_node else resources.driver.node,
    )
    integration = IntegrationActivities(resources.database, leases, snapshots)
    verification = VerificationActivities(resources.database, resources.store, leases, snapshots)
    handover = HandoverActivities(resources.database, resources.store, snapshots)
    return {
        Queue.ORCHESTRATION: [
            lifecycle.change_state,
            lifecycle.pause_task,
            lifecycle.end_pause,
            lifecycle.finish_task,
            lifecycle.load_plan,
            approvals.settle_approvals,
            approvals.request_plan_approval,
            approvals.plan_verdict,
            conversation.deliver_findings,
            handover.reflect,
        ],
        Queue.SANDBOXES: [
            conversation.open_thread,
            preparation.prepare,
            steps.run_step,
            steps.release_idle_sandbox,
            integration.end_subtask,
            lifecycle.release_sandboxes,
            branching.apply_rewind,
            verification.verify,
            handover.hand_over,
        ],
    }


def checking_runner() -> SandboxedWorkflowRunner:
    """Runs workflow code in the SDK's sandbox, which refuses what is not deterministic. The tests replay histories in it.

    Workers run the same code without it: an idle workflow takes 40 KB and 5 ms of CPU to start, against 228 KB and 22 ms in
    the sandbox, which loads the code anew for each (measured).
    """
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(
            "journeyman.platform", "journeyman.agents", "journeyman.workflows.types", "journeyman.workflows.timing"
        )
    )


def build_workers(
    client: Client, resources: Resources, roles: Sequence[Queue], version: WorkerVersion | None = None
) -> list[Worker]:
    """The Temporal workers of the roles: one for each task queue.

    The sandboxes role polls two queues: the shared one, and that of its node. On a single node the orchestration queue serves
    all activities instead.
    """
    by_queue = activities_by_queue(resources)
    if resources.single_node:
        everything = [each for activities in by_queue.values() for each in activities]
        return [_worker(client, Queue.ORCHESTRATION, everything, sum(SLOTS.values()), version)]
    workers = []
    for role in roles:
        queues = [str(role)]
        if role == Queue.SANDBOXES and resources.driver.node is not None:
            queues.append(node_queue(resources.driver.node))
        workers += [_worker(client, queue, by_queue[role], SLOTS[role], version) for queue in queues]
    return workers


def _worker(
    client: Client, queue: str, activities: list[Callable[..., Any]], slots: int, version: WorkerVersion | None
) -> Worker:
    orchestrates = queue == Queue.ORCHESTRATION
    return Worker(
        client,
        task_queue=queue,
        activities=activities,
        workflows=WORKFLOWS if orchestrates else [],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=CACHED_WORKFLOWS if orchestrates else 0,
        max_concurrent_activities=slots,
        graceful_shutdown_timeout=DRAIN,
        max_heartbeat_throttle_interval=timing.HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=timing.HEARTBEAT_THROTTLE,
        sticky_queue_schedule_to_start_timeout=timing.STICKY_QUEUE,
        deployment_config=version.config() if version is not None and orchestrates else None,
        interceptors=[FailureInterceptor()],
    )


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Work until ``stop`` is set, then drain. A worker that ends by itself is an error: the supervisor restarts it."""
    # The SDK logs every failed attempt with a traceback; ``FailureInterceptor`` has logged the failure already.
    logging.getLogger("temporalio.activity").setLevel(logging.ERROR)
    roles = [Queue(role.strip()) for role in settings.worker_roles.split(",") if role.strip()]
    async with open_resources(settings) as resources, AsyncExitStack() as stack:
        client = await connect(settings, resources.store, plugins=telemetry.temporal_plugins(settings))
        version = WorkerVersion.from_settings(settings)
        if version is not None and Queue.ORCHESTRATION in roles:
            keeping = asyncio.create_task(version.keep(client))
            stack.callback(keeping.cancel)
        if Queue.SANDBOXES in roles:
            node = NodeKeeper(resources.database, resources.driver, resources.capacity)
            await node.beat()
            beating = asyncio.create_task(node.keep())
            stack.callback(beating.cancel)
        workers = build_workers(client, resources, roles, version)
        logger.info("worker polls %s", ", ".join(worker.task_queue for worker in workers))
        running = [asyncio.create_task(worker.run()) for worker in workers]
        stack.push_async_callback(_drain, workers, running)
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopped, *running], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if stopped not in done:
            logger.error("a Temporal worker ended by itself; the process ends too")


async def _drain(workers: list[Worker], running: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*(worker.shutdown() for worker in workers))
    await asyncio.gather(*running)
