"""What a project with a flood of tasks costs another: ten small tasks of B alone, and behind two hundred of A.

The machine is shared, so B's tasks take longer while A's run; but they take their turn, and do not wait for A's end.
"""

import asyncio
import time

import httpx

from benchmarks.platform_run import Run, call, platform, threads
from benchmarks.results import Row, percentile, report

FLOOD = 200
TASKS = 10
TIMEOUT_S = 1800


async def timed(run: Run) -> float:
    began = time.perf_counter()
    task = await run.end(await run.submit(threads(call("shell", command="echo 1 > n"))), TIMEOUT_S)
    if task["state"] != "succeeded":
        raise RuntimeError(f"a task ended as {task['state']}: {task['failure']}")
    return time.perf_counter() - began


async def other_project(run: Run) -> Run:
    """A client of a project of its own."""

    response = await run.client.post("/v1/projects", json={"name": "Other"})
    response.raise_for_status()
    key = response.json()["api_key"]["key"]
    client = httpx.AsyncClient(base_url=run.client.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    return Run(run.stack, client, run.scripts)


async def measure() -> list[Row]:
    async with platform() as run:
        small = await other_project(run)
        await timed(small)
        alone = await asyncio.gather(*(timed(small) for _ in range(TASKS)))
        flood = [await run.submit(threads(call("shell", command="echo 1 > n"))) for _ in range(FLOOD)]
        behind = await asyncio.gather(*(timed(small) for _ in range(TASKS)))
        states = [(await run.client.get(f"/v1/tasks/{task_id}")).json()["state"] for task_id in flood]
        await small.client.aclose()
    over = sum(state == "succeeded" for state in states) / FLOOD
    return [
        Row("tasks of B", f"p95 of {TASKS} alone", percentile(alone, 0.95), "s"),
        Row("tasks of B", f"p95 of {TASKS} behind {FLOOD} of A", percentile(behind, 0.95), "s"),
        Row("tasks of B", "of A's, over when B's last was", over, "share", 0.5),
    ]


if __name__ == "__main__":
    report("flood", asyncio.run(measure()))
