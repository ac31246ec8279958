"""Temporal loses all that it knew: every task begins anew from its rows, and nothing is done or paid twice."""

import asyncio
from typing import Any

import pytest

from benchmarks.endurance.machine import Machine
from support.oracle import check_on
from support.scripts import shell, simple

STEPS = 6
TASKS = 20
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def working(name: str) -> dict[str, Any]:
    steps = [{**shell(f"echo {number} >> log"), "delay_ms": 1500} for number in range(STEPS)]
    return {"name": name, "instruction": f"Lost task {name}", "threads": simple(*steps)}


async def test_tasks_go_on_when_temporals_database_is_deleted(machine: Machine) -> None:
    running = []
    for number in range(TASKS):
        machine.write_script(script := working(f"running-{number}"))
        running.append(
            await machine.submit(
                instruction=script["instruction"],
                workspace={"source": "none"},
                acceptance=[f'test "$(cat log)" = "$(seq 0 {STEPS - 1})"'],
            )
        )
    async with asyncio.timeout(180):
        while not all([any(e["type"] == "agent.tool_result" for e in await machine.events(task)) for task in running]):
            await asyncio.sleep(0.2)
    paused = running.pop()
    await machine.call("POST", f"/v1/tasks/{paused}/pause")
    files = list((machine.data / "temporal").glob("temporal.sqlite*"))
    assert files
    assert machine.kill("temporal", 0) is not None
    for file in files:
        file.unlink(missing_ok=True)
    for task in running:
        await check_on(machine, task)
    # What a person paused stays so.
    assert (await machine.call("GET", f"/v1/tasks/{paused}"))["paused_reason"] == "user"
    await machine.call("POST", f"/v1/tasks/{paused}/resume")
    await check_on(machine, paused)
