"""From the start after a ``kill -9`` of everything until tasks move again: ``journeyman up`` to the first new event of each."""

import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.endurance.machine import EVERYTHING, Machine
from benchmarks.platform_run import call, threads
from benchmarks.results import Row, percentile, report

SAMPLES = 6
TASKS = 3
TARGET_S = 10.0
STEPS = 280
"""More than can be done meanwhile, and fewer than a thread may have."""


async def measure() -> list[Row]:
    first: list[float] = []
    last: list[float] = []
    ready: list[float] = []
    with tempfile.TemporaryDirectory(prefix="jm-rst-", ignore_cleanup_errors=True) as root:
        machine = Machine(Path(root))
        machine.make()
        await machine.up()
        try:
            tasks: list[str] = []
            for number in range(TASKS):
                turns = [call("shell", command=f"sleep 0.2; echo {step} > n") for step in range(STEPS)]
                instruction = f"Restart task {number}"
                machine.write_script({"name": f"r{number}", "instruction": instruction, "threads": threads(*turns)})
                tasks.append(await machine.submit(instruction=instruction, workspace={"source": "none"}))
            for _ in range(SAMPLES):
                for task_id in tasks:
                    await _moves(machine, task_id)
                machine.kill(EVERYTHING, 0)
                while machine.supervisor() is not None:
                    await asyncio.sleep(0.02)
                began = datetime.now(UTC)
                ready.append(await machine.up())
                moved = [await _first_since(machine, task_id, began) for task_id in tasks]
                first.append(min(moved))
                last.append(max(moved))
        finally:
            await machine.down()
    return [
        Row("restart of everything", f"to the first event, max of {SAMPLES}", max(first), "s", TARGET_S),
        Row("restart of everything", "until every task moved, p50", percentile(last, 0.5), "s"),
        Row("restart of everything", "until every task moved, max", max(last), "s", TARGET_S),
        Row("restart of everything", "until all is ready, p50", percentile(ready, 0.5), "s"),
    ]


async def _moves(machine: Machine, task_id: str) -> None:
    """Wait until the task has written something."""
    seen = len(await machine.events(task_id))
    async with asyncio.timeout(120):
        while len(await machine.events(task_id)) <= max(seen, 20):
            await asyncio.sleep(0.1)


async def _first_since(machine: Machine, task_id: str, began: datetime) -> float:
    """Seconds from then to the task's first event after it."""
    async with asyncio.timeout(120):
        while True:
            for event in await machine.events(task_id):
                waited = (datetime.fromisoformat(event["time"]) - began).total_seconds()
                if waited > 0:
                    return waited
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    report("restart", asyncio.run(measure()))
