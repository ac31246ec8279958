"""A person's interruption of a call that ends by itself all the same: the message is read next."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from journeyman.platform.kit.names import MEMO_TOGETHER, SIGNAL_INTERRUPT, Queue
from journeyman.workflows.types import StepOutcome, Turn
from support.talking_workflow import Talking, Told


async def interrupted(
    client: Client, queue: str, first: Callable[[], Awaitable[Turn]], *, times: int = 1
) -> tuple[int, list[str]]:
    """Steps of the conversation, and what it asked for, when its first call is interrupted and then does that.

    On a ``queue`` other than that of all roles the two halves of a step are apart.
    """
    heard = asyncio.Event()

    async def then() -> Turn:
        while not heard.is_set():
            with suppress(asyncio.CancelledError):
                await heard.wait()
        return await first()

    told = Told(then)
    activities = [told.take_step, told.call_model, told.run_tools, told.settle_approvals]
    together = queue == "together"
    queues = [Queue.ORCHESTRATION] if together else [Queue.ORCHESTRATION, Queue.MODELS, Queue.SANDBOXES]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        workers = [
            Worker(
                client,
                task_queue=name,
                activities=activities,
                workflows=[Talking] if name == Queue.ORCHESTRATION else [],
                workflow_runner=UnsandboxedWorkflowRunner(),
            )
            for name in queues
        ]
        running = [group.create_task(worker.run()) for worker in workers]
        handle: WorkflowHandle[Talking, int] = await client.start_workflow(
            Talking.run,
            id=f"talk-{uuid.uuid4().hex}",
            task_queue=Queue.ORCHESTRATION,
            memo={MEMO_TOGETHER: True} if together else None,
        )
        await told.began.wait()
        for _ in range(times):
            await handle.signal(SIGNAL_INTERRUPT)
        while await handle.query(Talking.interruptions) < times:
            await asyncio.sleep(0.02)
        heard.set()
        steps = await handle.result()
        for worker in workers:
            await worker.shutdown()
        await asyncio.gather(*running)
    return steps, told.asked


async def waits() -> Turn:
    return Turn(outcome=StepOutcome(waiting=["apr_1"]))


async def leaves_out_the_outcome() -> Turn:
    return Turn()


async def fails() -> Turn:
    raise ApplicationError("The model does not answer.", type="model_unavailable")


@pytest.mark.parametrize("times", [1, 2])
async def test_a_wait_for_a_decision_ends(client: Client, times: int) -> None:
    assert await interrupted(client, "together", waits, times=times) == (2, ["take_step", "run_tools!", "take_step"])


async def test_calls_that_are_to_be_tried_again_are_not_begun(client: Client) -> None:
    assert await interrupted(client, "together", leaves_out_the_outcome) == (
        2,
        ["take_step", "run_tools!", "take_step"],
    )


async def test_calls_of_an_answer_that_just_came_are_not_begun(client: Client) -> None:
    assert await interrupted(client, "apart", leaves_out_the_outcome) == (
        2,
        ["call_model", "run_tools!", "call_model", "run_tools"],
    )


@pytest.mark.parametrize("mode", ["together", "apart"])
async def test_a_call_that_failed_just_then_does_not_end_the_task(client: Client, mode: str) -> None:
    """Temporal does not try it again, because it was to be cancelled."""
    _, asked = await interrupted(client, mode, fails)
    assert asked[:2] == [{"together": "take_step", "apart": "call_model"}[mode], "run_tools!"]
