"""Workers are killed while a task is being taken back: it goes back once, and ends verified."""

import asyncio

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from support.platform import Platform
from support.scripts import approve, coder, plan, planner, reviewer, shell, work
from support.stack import kill_and_wait

LINES = 6


@pytest.mark.parametrize("once_applied", [False, True])
@pytest.mark.slow
async def test_workers_killed_during_a_rewind(
    platform: Platform, full_stack: EmbeddedStack, *, once_applied: bool
) -> None:
    steps = [{**shell(f"sleep 0.3; echo {number} >> log"), "delay_ms": 200} for number in range(LINES)]
    wanted = "".join(f"{number}\\n" for number in range(LINES))
    task_id = await platform.submit(
        [planner(plan()), coder(*steps, work()), reviewer(approve())],
        acceptance=[f'test "$(cat log)" = "$(printf \'{wanted}\')"'],
    )
    async with asyncio.timeout(60):
        while len(found := (await platform.get(f"/v1/tasks/{task_id}/checkpoints"))["data"]) < 5:
            await asyncio.sleep(0.05)
    # The newest first: the preparation's, the Planner's, and three of the Coder's.
    first = found[-3]
    asked = await platform.client.post(f"/v1/tasks/{task_id}/rewind", json={"checkpoint_id": first["id"]})
    assert asked.status_code == 202
    if once_applied:
        await platform.wait_until_event(task_id, "task.rewound")
    await asyncio.gather(*(kill_and_wait(full_stack, name, 60) for name in ("worker-1", "worker-2")))
    outcome = await platform.end(task_id, 120)
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert outcome.task["verified"] is True
    assert outcome.task["epoch"] == 1
    assert [event["data"]["rewind_id"] for event in outcome.of("task.rewound")] == [asked.json()["id"]]
    calls = [event["data"]["call_id"] for event in outcome.of("agent.tool_call")]
    assert len(calls) == len(set(calls))
