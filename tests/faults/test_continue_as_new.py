"""Workers die and people pause and resume while workflows continue as new runs all the time: no signal is lost."""

import asyncio
import random

import pytest

from benchmarks.endurance.machine import Machine
from support.oracle import check_on
from support.scripts import shell, simple

STEPS = 40
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("machine", [{"JOURNEYMAN_TEMPORAL_RUN_EVENTS": "60"}], indirect=True)
async def test_kills_and_signals_while_runs_change(machine: Machine) -> None:
    chance = random.Random(11)
    steps = [{**shell(f"sleep 0.3; echo {number} >> log"), "delay_ms": 300} for number in range(STEPS)]
    machine.write_script({"name": "runs", "instruction": "Many runs", "threads": simple(*steps)})
    task_id = await machine.submit(
        instruction="Many runs",
        workspace={"source": "none"},
        acceptance=[f'test "$(cat log)" = "$(seq 0 {STEPS - 1})"'],
    )
    async with asyncio.timeout(400):
        while len(await machine.events(task_id)) < 12:
            await asyncio.sleep(0.2)
        pauses = 0
        for _ in range(8):
            await asyncio.sleep(chance.uniform(2, 4))
            machine.kill(chance.choice(["worker-1", "worker-2"]), 0)
            # While one worker is down: each of these is acknowledged, so each takes effect.
            await machine.call("POST", f"/v1/tasks/{task_id}/pause")
            await machine.call("POST", f"/v1/tasks/{task_id}/resume")
            pauses += 1
    await check_on(machine, task_id, 600)
    types = [event["type"] for event in await machine.events(task_id)]
    assert types.count("task.paused") == pauses
    assert types.count("task.resumed") == pauses
