"""Pausing and going on: by a person, at a limit of the budget, by the circuit breaker, and for want of a model."""

import asyncio

from temporalio.client import Client

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.names import SIGNAL_RESUME, subtask_workflow_id, task_workflow_id
from support.holding import log_held, waiting_for_log
from support.platform import Platform
from support.scripts import approve, call, coder, plan, planner, reviewer, shell, simple, work


async def test_a_person_pauses_and_resumes(platform: Platform) -> None:
    task_id = await platform.submit(simple(*(shell(f"sleep 0.3; echo {n} >> log") for n in range(8))))
    await platform.wait_until_event(task_id, "agent.tool_result")
    for _ in range(2):
        response = await platform.client.post(f"/v1/tasks/{task_id}/pause")
        assert response.json()["paused_reason"] == "user"
    await platform.wait_until_still(task_id)
    before = len(await platform.events(task_id))
    for _ in range(2):
        response = await platform.client.post(f"/v1/tasks/{task_id}/resume")
        assert response.json()["paused_reason"] is None
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded"
    assert len(outcome.events) > before
    assert len(outcome.of("task.paused")) == 1
    assert len(outcome.of("task.resumed")) == 1


async def test_a_paused_task_can_be_cancelled(platform: Platform) -> None:
    task_id = await platform.submit(simple(*(shell(f"sleep 0.2; echo {n} >> log") for n in range(8))))
    await platform.wait_until_call(task_id, "echo 0")
    await platform.client.post(f"/v1/tasks/{task_id}/pause")
    await platform.wait_until_still(task_id)
    await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    assert (await platform.end(task_id)).task["state"] == "cancelled"
    assert [each["state"] for each in (await platform.get(f"/v1/tasks/{task_id}/plan"))["subtasks"]] == ["stopped"]
    for action in ("pause", "resume"):
        response = await platform.client.post(f"/v1/tasks/{task_id}/{action}")
        assert response.status_code == 409
        assert response.json()["code"] == "task_ended"


async def test_at_a_limit_the_task_pauses_and_goes_on_with_more(platform: Platform) -> None:
    steps = [shell(f"echo {n} >> log") for n in range(8)]
    task_id = await platform.submit(simple(*steps), budget={"max_steps": 4}, acceptance=["test $(wc -l < log) = 8"])
    paused = await platform.wait_for(task_id, lambda task: task["paused_reason"] == "budget")
    assert paused["state"] == "running"
    assert "budget_exhausted" not in paused["paused_detail"]["detail"]
    response = await platform.client.patch(f"/v1/tasks/{task_id}/budget", json={"max_steps": 100})
    assert response.status_code == 200
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True
    assert len(outcome.of("budget.exhausted")) == 1
    assert [event["data"]["limit"] for event in outcome.of("budget.warned")] == ["max_steps"]
    assert outcome.of("budget.changed")[0]["data"]["budget"] == {"max_steps": 100}


async def test_a_token_limit_is_held_by_the_gateway(platform: Platform) -> None:
    task_id = await platform.submit(simple(shell("true")), budget={"max_tokens": 5000})
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "budget")
    assert not [event for event in await platform.events(task_id) if event["type"] == "model.completed"]
    response = await platform.client.patch(f"/v1/tasks/{task_id}/budget", json={"max_tokens": None})
    assert response.json()["budget"] == {}
    assert (await platform.end(task_id)).task["state"] == "succeeded"


async def test_the_circuit_breaker_pauses_an_agent_that_repeats_itself(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder({**shell("cat nothing"), "repeat": 6}, shell("echo on > file"), work()),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads)
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "circuit_breaker")
    await platform.client.post(f"/v1/tasks/{task_id}/resume")
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded"
    assert outcome.of("circuit_breaker.tripped")[0]["data"]["kind"] == "repeat"


async def test_a_pause_noted_after_the_task_was_let_go_on_is_taken_back(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    """As when two subtasks trip the breaker, and a person resumes the task between the second's signal and its note."""
    threads = [
        planner(plan()),
        coder({**shell("cat nothing"), "repeat": 6}, *(shell(f"echo {n} >> file") for n in range(3)), work()),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads)
    client = await Client.connect(full_stack.settings.temporal_address)
    subtask = client.get_workflow_handle(subtask_workflow_id(task_id, "s1", 1, 0))
    async with log_held(full_stack, task_id, after="circuit_breaker.tripped"):
        await waiting_for_log(full_stack)
        await client.get_workflow_handle(task_workflow_id(task_id)).signal(SIGNAL_RESUME)
        async with asyncio.timeout(30):
            while (await subtask.query("progress"))["pause_version"] < 2:
                await asyncio.sleep(0.05)
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded"
    paused, resumed, *_ = (n for n, type_ in enumerate(outcome.types) if type_ in {"task.paused", "task.resumed"})
    calls = [n for n, type_ in enumerate(outcome.types) if type_ == "model.started"]
    assert outcome.types[paused] == "task.paused"
    assert not [n for n in calls if paused < n < resumed]
    assert [n for n in calls if n > resumed]


async def test_without_a_model_the_task_waits_and_goes_on_by_itself(platform: Platform) -> None:
    fault = {"kind": "status", "status": 503, "times": 5}
    outcome = await platform.run(simple({**shell("true"), "fault": fault}))
    assert outcome.task["state"] == "succeeded"
    assert [event["data"]["reason"] for event in outcome.of("task.paused")] == ["model_unavailable"]
    assert len(outcome.of("task.resumed")) == 1


async def test_recall_finds_what_was_said_in_the_task_and_what_was_remembered(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder(
            shell("echo the walrus lives in cellar seven"),
            call("recall", query="where does the walrus live"),
            call("remember", text="Walruses are kept below ground."),
            work(),
        ),
        reviewer(approve()),
    ]
    outcome = await platform.run(threads)
    assert "cellar seven" in outcome.results("recall")[0]["text"]
    assert outcome.results("remember")[0]["text"].startswith("Remembered")
