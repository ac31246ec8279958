"""Workers with queues of their own for models and sandboxes, as on several machines: a step is two activities then."""

from collections.abc import AsyncIterator

import pytest
from temporalio.api.enums.v1 import EventType

from journeyman.platform.embedded.stack import EVERYTHING, EmbeddedStack
from journeyman.platform.kit.names import Queue, subtask_workflow_id
from journeyman.platform.kit.temporal import connect
from support.holding import command_running, holder
from support.inbox import Inbox
from support.oracle import check_verified
from support.platform import Platform, client_of
from support.scripts import approve, coder, plan, planner, reviewer, shell, simple, work
from support.stack import SessionStack, kill_and_wait


@pytest.fixture(scope="module")
async def apart() -> AsyncIterator[EmbeddedStack]:
    stack = SessionStack(together=False)
    try:
        yield await stack.ask(*EVERYTHING)
    finally:
        await stack.close()


@pytest.fixture
async def platform(apart: EmbeddedStack) -> AsyncIterator[Platform]:
    async with client_of(apart) as running:
        yield running


async def activities(stack: EmbeddedStack, workflow_id: str) -> set[tuple[str, str]]:
    """Names and queues of the activities that a workflow's newest run has asked for."""
    client = await connect(stack.settings)
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    asked = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    return {(each.activity_type.name, each.task_queue.name) for each in asked}


async def test_models_and_sandboxes_have_queues_of_their_own(platform: Platform, apart: EmbeddedStack) -> None:
    task_id = await platform.submit(simple(shell("echo once >> log")), acceptance=['test "$(cat log)" = once'])
    await check_verified(apart, await platform.end(task_id))
    asked = await activities(apart, subtask_workflow_id(task_id, "s1", 1))
    assert {("call_model", Queue.MODELS), ("run_tools", Queue.SANDBOXES)} <= asked
    assert "take_step" not in {name for name, _ in asked}


async def test_a_worker_killed_under_a_command_loses_nothing(platform: Platform, apart: EmbeddedStack) -> None:
    threads = simple(shell("echo begun >> log; sleep 4.0127; echo done >> log"))
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(printf "begun\\ndone")"'])
    await command_running("4.0127")
    worker = await holder(apart, subtask_workflow_id(task_id, "s1", 1), "run_tools")
    await kill_and_wait(apart, worker.name, 60)
    log = await check_verified(apart, await platform.end(task_id))
    assert log.recovery["reattached"] == 1


async def test_both_halves_of_a_step_can_be_interrupted(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder(
            {**shell("true"), "fault": {"kind": "timeout", "seconds": 300}},
            shell("sleep 300"),
            {**shell("true"), "expect": "To the command."},
            work(),
        ),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads)
    await platform.wait_until(
        task_id,
        lambda events: any(event["type"] == "model.started" and event["data"]["role"] == "coder" for event in events),
    )
    await _interrupt(platform, task_id, "To the model.")
    await platform.wait_until_call(task_id, "sleep 300")
    await _interrupt(platform, task_id, "To the command.")
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert [result.get("error") for result in outcome.results("shell")] == [None, "interrupted", None]


async def test_calls_wait_for_approval(platform: Platform) -> None:
    policy = {"rules": [{"tool": "shell", "pattern": "touch *", "require": "always"}]}
    threads = [planner(plan()), coder(shell("touch a"), work()), reviewer(approve())]
    task_id = await platform.submit(threads, approval_policy=policy, acceptance=["test -e a"])
    await Inbox(platform, task_id).approve_all(1)
    assert (await platform.end(task_id)).task["verified"] is True


async def _interrupt(platform: Platform, task_id: str, text: str) -> None:
    said = await platform.client.post(f"/v1/tasks/{task_id}/messages", json={"text": text, "mode": "interrupt"})
    said.raise_for_status()
