"""Fifty tasks at once on one machine: do all finish, and what do the workers need for it?"""

import asyncio
import time

import psutil

from benchmarks.platform_run import Run, call, platform, threads
from benchmarks.results import Row, report

TASKS = 50
STEPS = 5
TIMEOUT_S = 600


async def peak_memory(run: Run, stop: asyncio.Event) -> float:
    """Largest resident size of any one worker, in MB, sampled until ``stop``."""
    peak = 0.0
    while not stop.is_set():
        for part in run.stack.parts:
            if part.name.startswith("worker") and part.pid is not None and psutil.pid_exists(part.pid):
                peak = max(peak, psutil.Process(part.pid).memory_info().rss / 1e6)
        await asyncio.sleep(0.5)
    return peak


async def main() -> None:
    async with platform() as run:
        stop = asyncio.Event()
        memory = asyncio.create_task(peak_memory(run, stop))
        started = time.perf_counter()
        turns = [call("shell", command=f"echo {number} > n") for number in range(STEPS)]
        ids = [await run.submit(threads(*turns), acceptance=["test -e n"]) for _ in range(TASKS)]
        ended = await asyncio.gather(*(run.end(task_id, TIMEOUT_S) for task_id in ids))
        seconds = time.perf_counter() - started
        stop.set()
        unfinished = sum(task["state"] != "succeeded" or not task["verified"] for task in ended)
        report(
            "load",
            [
                Row(f"{TASKS} tasks at once", "not verified", unfinished, "tasks", 0),
                Row(f"{TASKS} tasks at once", "until the last ended", seconds, "s"),
                Row(f"{TASKS} tasks at once", "peak memory of a worker", await memory, "MB", 400),
            ],
        )


if __name__ == "__main__":
    asyncio.run(main())
