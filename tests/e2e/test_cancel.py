"""Cancelling on the running platform, at any moment of a task's life."""

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.temporal import connect
from support.platform import TERMINAL, Platform
from support.scripts import approve, coder, plan, planner, reviewer, shell, work

LONG = [planner(plan()), coder(shell("sleep 60"), work()), reviewer(approve())]


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.5])
async def test_a_cancelled_task_ends_cancelled_and_its_workflow_ends_well(
    platform: Platform, full_stack: EmbeddedStack, delay_s: float
) -> None:
    task_id = await platform.submit(LONG)
    # The moment is the point of this test: before the start, at it, while preparing, planning and working.
    await asyncio.sleep(delay_s)
    response = await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    assert response.status_code == 200
    again = await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    assert again.json()["cancel_requested_at"] == response.json()["cancel_requested_at"]
    task = await platform.wait_for(task_id, lambda task: task["state"] in TERMINAL, timeout_s=60)
    assert task["state"] == "cancelled", task["failure"]
    types = [event["type"] for event in await platform.events(task_id)]
    assert types[-1] == "task.cancelled"
    assert types.count("task.cancelled") == 1
    await _workflow_is_over(full_stack, task_id)


async def _workflow_is_over(stack: EmbeddedStack, task_id: str) -> None:
    """It completed, or never was; it did not fail, and nothing of it goes on."""
    from temporalio.service import RPCError

    client = await connect(stack.settings)
    async with asyncio.timeout(60):
        while True:
            try:
                status = (await client.get_workflow_handle(task_id).describe()).status
            except RPCError:
                return
            if status != WorkflowExecutionStatus.RUNNING:
                break
            await asyncio.sleep(0.05)
    assert status == WorkflowExecutionStatus.COMPLETED


@pytest.mark.parametrize("delay_s", [0.0, 0.3, 0.5, 0.6, 0.7, 0.8])
async def test_a_cancel_that_is_acknowledged_near_the_end_counts(platform: Platform, delay_s: float) -> None:
    task_id = await platform.submit(
        [planner(plan()), coder(shell("true"), work()), reviewer(approve())], acceptance=["sleep 0.3"]
    )
    await platform.wait_until_event(task_id, "review.approved")
    await asyncio.sleep(delay_s)
    answer = (await platform.client.post(f"/v1/tasks/{task_id}/cancel")).json()
    outcome = await platform.end(task_id)
    asked_before_its_end = answer["cancel_requested_at"] is not None
    assert outcome.task["state"] == ("cancelled" if asked_before_its_end else "succeeded")


async def test_a_call_that_was_cut_off_has_an_end(platform: Platform) -> None:
    """Also of a command that will not go: each call in the log has its result."""
    stubborn = shell("trap '' TERM INT; echo begun; while true; do sleep 1; done")
    task_id = await platform.submit([planner(plan()), coder(stubborn, work()), reviewer(approve())])
    await platform.wait_until_call(task_id, "begun")
    await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "cancelled"
    calls = [event["data"]["call_id"] for event in outcome.of("agent.tool_call")]
    assert sorted(calls) == sorted(result["call_id"] for result in outcome.results())
    assert [result.get("error") for result in outcome.results() if result["call_id"] == calls[-1]] == ["cut_off"]
