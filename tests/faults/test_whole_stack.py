"""Everything is killed at once, supervisor included, or stopped in order: the next start takes up every task."""

import asyncio
from typing import Any

import pytest

from benchmarks.endurance.machine import EVERYTHING, Machine
from support.oracle import check_on
from support.scripts import shell, simple

STEPS = 10
pytestmark = pytest.mark.slow


def working(name: str) -> dict[str, Any]:
    steps = [{**shell(f"sleep 0.3; echo {number} >> log"), "delay_ms": 200} for number in range(STEPS)]
    return {"name": name, "instruction": f"Fault task {name}", "threads": simple(*steps)}


async def submit(machine: Machine, name: str) -> str:
    machine.write_script(script := working(name))
    return await machine.submit(
        instruction=script["instruction"],
        workspace={"source": "none"},
        acceptance=[f'test "$(cat log)" = "$(seq 0 {STEPS - 1})"'],
    )


async def has_results(machine: Machine, task_id: str, count: int = 1) -> None:
    async with asyncio.timeout(90):
        while sum(e["type"] == "agent.tool_result" for e in await machine.events(task_id)) < count:
            await asyncio.sleep(0.1)


@pytest.mark.timeout(400)
async def test_a_start_after_the_kill_of_everything_takes_up_every_task(machine: Machine) -> None:
    running = [await submit(machine, f"running-{number}") for number in range(3)]
    paused = await submit(machine, "paused")
    for task_id in [*running, paused]:
        await has_results(machine, task_id)
    await machine.call("POST", f"/v1/tasks/{paused}/pause")
    queued = await submit(machine, "just-submitted")
    assert machine.kill(EVERYTHING, 0) is not None
    while machine.supervisor() is not None:
        await asyncio.sleep(0.05)
    await machine.up()
    for task_id in [*running, queued]:
        await check_on(machine, task_id)
    # What was paused stays so until somebody resumes it.
    task = await machine.call("GET", f"/v1/tasks/{paused}")
    assert task["paused_reason"] == "user"
    await machine.call("POST", f"/v1/tasks/{paused}/resume")
    await check_on(machine, paused)


@pytest.mark.timeout(400)
async def test_down_in_the_middle_of_a_task_and_up_again(machine: Machine) -> None:
    task_id = await submit(machine, "down-and-up")
    for count in (2, 5):
        await has_results(machine, task_id, count)
        await machine.down()
        await machine.up()
    log = await check_on(machine, task_id)
    # Told to stop, workers finish what they do: nobody sees a failure of the platform's own.
    assert log.recovery["model.failed"] == 0
