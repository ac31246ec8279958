"""What tasks cost that wait for a person: memory of the workers with 500 paused tasks, against the same workers without."""

import asyncio
from pathlib import Path

from benchmarks.platform_run import Run, call, platform, threads
from benchmarks.results import Row, report

TASKS = 500
WARM_UP = 100
AT_ONCE = 8
WHOLE = 3
TARGET_MB = 50.0


def workers_mb(run: Run) -> float:
    """Memory that is the workers' own, together: what they share with nobody, or their part of what they share."""
    total = 0
    for part in run.stack.parts:
        if part.name.startswith("worker") and part.pid is not None:
            for line in Path(f"/proc/{part.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


async def settled_mb(run: Run) -> float:
    """The least of some looks, a while after the last work."""
    looks = []
    for _ in range(5):
        await asyncio.sleep(2)
        looks.append(workers_mb(run))
    return min(looks)


async def pause_one(run: Run, gate: asyncio.Semaphore) -> str:
    async with gate:
        task_id = await run.submit(threads(call("shell", command="echo 1 > n")))
        (await run.client.post(f"/v1/tasks/{task_id}/pause")).raise_for_status()
        return task_id


async def whole_one(run: Run) -> None:
    task = await run.end(await run.submit(threads(call("shell", command="echo 1 > n"))), 120)
    if task["state"] != "succeeded":
        raise RuntimeError(f"a task ended as {task['state']}")


async def measure() -> list[Row]:
    gate = asyncio.Semaphore(AT_ONCE)
    async with platform() as run:
        # What the workers load with the first work of each kind, and what a rush takes, is not the sleepers' cost.
        for _ in range(WHOLE):
            await asyncio.gather(*(whole_one(run) for _ in range(AT_ONCE)))
        warm = await asyncio.gather(*(pause_one(run, gate) for _ in range(WARM_UP)))
        await settled_mb(run)
        for task_id in warm:
            (await run.client.post(f"/v1/tasks/{task_id}/cancel")).raise_for_status()
            await run.end(task_id, 60)
        before = await settled_mb(run)
        tasks = await asyncio.gather(*(pause_one(run, gate) for _ in range(TASKS)))
        after = await settled_mb(run)
        # They must be asleep, not dead: one that is resumed goes on to its end.
        for task_id in (tasks[0], tasks[-1]):
            (await run.client.post(f"/v1/tasks/{task_id}/resume")).raise_for_status()
            task = await run.end(task_id, 120)
            if task["state"] != "succeeded":
                raise RuntimeError(f"a resumed task ended as {task['state']}")
    return [
        Row(f"{TASKS} paused tasks", "workers before", before, "MB"),
        Row(f"{TASKS} paused tasks", "added to the workers", after - before, "MB", TARGET_MB),
    ]


if __name__ == "__main__":
    report("idle", asyncio.run(measure()))
