"""Steps follow their sandbox: to the queue of the node that holds it, and away from a node that is gone."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from journeyman.platform.kit.names import Queue, node_queue
from journeyman.workflows import timing
from journeyman.workflows.types import StepOutcome
from support.thread_workflow import ScriptedActivities, ThreadWorkflow


async def queues_of_steps(client: Client, *steps: Callable[[], Awaitable[StepOutcome]], nodes: list[str]) -> list[str]:
    """The queue on which each step was started, with a worker for the shared queue and one for each of ``nodes``."""
    scripted = ScriptedActivities(list(steps))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        workers = [
            Worker(
                client,
                task_queue=queue,
                activities=[scripted.run_step],
                workflows=[ThreadWorkflow] if queue == Queue.ORCHESTRATION else [],
                workflow_runner=UnsandboxedWorkflowRunner(),
            )
            for queue in [*map(str, Queue), *map(node_queue, nodes)]
        ]
        running = [group.create_task(worker.run()) for worker in workers]
        await client.execute_workflow(
            ThreadWorkflow.run, id=f"thread-{uuid.uuid4().hex}", task_queue=Queue.ORCHESTRATION
        )
        for worker in workers:
            await worker.shutdown()
        await asyncio.gather(*running)
    return [queue for queue, _ in scripted.started]


async def in_sandbox_on_a() -> StepOutcome:
    return StepOutcome(node="a")


async def refused_for_a() -> StepOutcome:
    raise ApplicationError("elsewhere", {"node": "a"}, type="sandbox_elsewhere", non_retryable=True)


async def test_steps_stay_on_the_node_of_their_sandbox(client: Client) -> None:
    queues = await queues_of_steps(client, in_sandbox_on_a, in_sandbox_on_a, nodes=["a", "b"])
    assert queues == [Queue.SANDBOXES, node_queue("a"), node_queue("a")]


async def test_a_worker_that_cannot_reach_the_sandbox_names_the_node_that_can(client: Client) -> None:
    assert await queues_of_steps(client, refused_for_a, nodes=["a"]) == [Queue.SANDBOXES, node_queue("a")]


async def test_a_step_leaves_the_queue_of_a_node_without_workers(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "NODE_SILENT", timing.BEAT)
    assert await queues_of_steps(client, in_sandbox_on_a, nodes=[]) == [Queue.SANDBOXES, Queue.SANDBOXES]
