"""A person's interruption meets the death of the worker that is to stop: the message is read, and the task goes on."""

import pytest
from faults.test_takeover import back, in_subtask, kill

from journeyman.apps.embedded.stack import EmbeddedStack
from support.holding import command_running, holder
from support.oracle import check_verified
from support.platform import Platform
from support.scripts import shell, simple

COMMAND = {**shell("sleep 300.0419; echo never >> log")}
THINKING = {**shell("true"), "fault": {"kind": "timeout", "seconds": 300}}


@pytest.mark.parametrize("half", ["model", pytest.param("command", marks=pytest.mark.slow)])
async def test_interrupted_while_its_worker_is_dead(platform: Platform, full_stack: EmbeddedStack, half: str) -> None:
    """Temporal does not try a call again whose cancellation was asked for, though its worker never heard of that."""
    first, begins = (THINKING, "model.started") if half == "model" else (COMMAND, "agent.tool_call")
    threads = simple(first, {**shell("echo once >> log"), **({"expect": "Stop that."} if half == "command" else {})})
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = once'])
    workflow = await in_subtask(platform, task_id, begins)
    if half == "command":
        await command_running("300.0419")
    worker = await holder(full_stack, workflow, "run_step")
    victim = worker.pid
    kill(victim)
    body = {"text": "Stop that.", "mode": "interrupt"}
    response = await platform.client.post(f"/v1/tasks/{task_id}/messages", json=body)
    assert response.status_code == 201, response.text
    await check_verified(full_stack, outcome := await platform.end(task_id, 60))
    assert [event["data"]["role"] for event in outcome.of("message.delivered")] == ["coder", "reviewer"]
    await back(full_stack, worker.name, victim or 0)
