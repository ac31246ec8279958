"""A person's interruption of a step that ends by itself all the same: the message is read next."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from journeyman.platform.kit.names import SIGNAL_INTERRUPT, Queue
from journeyman.workflows.types import StepOutcome
from support.thread_workflow import ScriptedActivities, ThreadWorkflow


async def interrupted(
    client: Client, first: Callable[[], Awaitable[StepOutcome]], *, times: int = 1
) -> tuple[int, list[bool]]:
    """Number of steps, and for each ``run_step`` whether it was of an interrupted step, when the first one is interrupted and
    then does ``first``.
    """
    signalled = asyncio.Event()

    async def then() -> StepOutcome:
        while not signalled.is_set():
            with suppress(asyncio.CancelledError):
                await signalled.wait()
        return await first()

    scripted = ScriptedActivities([then])
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        workers = [
            Worker(
                client,
                task_queue=name,
                activities=[scripted.run_step, scripted.settle_approvals],
                workflows=[ThreadWorkflow] if name == Queue.ORCHESTRATION else [],
                workflow_runner=UnsandboxedWorkflowRunner(),
            )
            for name in Queue
        ]
        running = [group.create_task(worker.run()) for worker in workers]
        handle: WorkflowHandle[ThreadWorkflow, int] = await client.start_workflow(
            ThreadWorkflow.run, id=f"thread-{uuid.uuid4().hex}", task_queue=Queue.ORCHESTRATION
        )
        await scripted.began.wait()
        for _ in range(times):
            await handle.signal(SIGNAL_INTERRUPT)
        while await handle.query(ThreadWorkflow.interruptions) < times:
            await asyncio.sleep(0.02)
        signalled.set()
        steps = await handle.result()
        for worker in workers:
            await worker.shutdown()
        await asyncio.gather(*running)
    return steps, [of_interrupted for _, of_interrupted in scripted.started]


async def waits() -> StepOutcome:
    return StepOutcome(waiting=["apr_1"])


async def ends() -> StepOutcome:
    return StepOutcome()


async def fails() -> StepOutcome:
    raise ApplicationError("The model does not answer.", type="model_unavailable")


@pytest.mark.parametrize("times", [1, 2])
async def test_a_wait_for_a_decision_ends(client: Client, times: int) -> None:
    assert await interrupted(client, waits, times=times) == (2, [False, True, False])


async def test_a_step_that_ended_just_then_is_not_run_again(client: Client) -> None:
    assert await interrupted(client, ends) == (2, [False, False])


async def test_a_step_that_failed_just_then_does_not_end_the_task(client: Client) -> None:
    """Temporal does not retry it, because its cancellation was requested."""
    assert await interrupted(client, fails) == (2, [False, True, False])
