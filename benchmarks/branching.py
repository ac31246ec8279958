"""How long does a fork of a task with 10,000 files take, and a rewind of a running one?

A fork is measured from its POST to the answer, which says that the new task exists with everything it goes on from, and to
its first model call. A rewind is measured from its POST to the next model call; it first ends the command that runs.
"""

import asyncio
import time
from datetime import datetime
from typing import Any

from benchmarks.platform_run import Run, call, platform, threads
from benchmarks.results import Row, percentile, report

FILES = 10_000
FORKS = 10
REWINDS = 10
TIMEOUT_S = 120
MAKE = (
    f"python3 -c \"import os; [(os.makedirs(f'd{{n // 100}}', exist_ok=True), "
    f"open(f'd{{n // 100}}/f{{n}}.py', 'w').write(f'# {{n}}\\n' + 'x = 1\\n' * (n % 300))) for n in range({FILES})]\""
)


async def wait_for(run: Run, task_id: str, type_: str, *, after: int = 0, count: int = 1) -> list[dict[str, Any]]:
    """The task's events of a type from after an event on, once there are so many."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = [event for event in await run.events(task_id) if event["type"] == type_ and event["seq"] > after]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


def milliseconds(since: float, event: dict[str, Any]) -> float:
    """From a moment (Unix time) to an event; all run on one machine and by one clock."""
    return (datetime.fromisoformat(event["time"]).timestamp() - since) * 1000


async def newest_checkpoint(run: Run, task_id: str) -> dict[str, Any]:
    response = await run.client.get(f"/v1/tasks/{task_id}/checkpoints", params={"limit": 1})
    response.raise_for_status()
    found: dict[str, Any] = response.json()["data"][0]
    return found


async def forks(run: Run, task_id: str, checkpoint_id: str) -> tuple[list[float], list[float]]:
    answered, called = [], []
    for _ in range(FORKS):
        since = time.time()
        response = await run.client.post(f"/v1/tasks/{task_id}/fork", json={"checkpoint_id": checkpoint_id})
        answered.append((time.time() - since) * 1000)
        response.raise_for_status()
        fork_id = response.json()["id"]
        (first, *_) = await wait_for(run, fork_id, "model.started")
        called.append(milliseconds(since, first))
        await run.client.post(f"/v1/tasks/{fork_id}/cancel")
        await run.end(fork_id, TIMEOUT_S)
    return answered, called


async def rewinds(run: Run, task_id: str, checkpoint_id: str) -> list[float]:
    times = []
    for _ in range(REWINDS):
        # In the middle of a command, which is to be ended first.
        last = (await run.events(task_id))[-1]["seq"]
        await wait_for(run, task_id, "agent.tool_call", after=last)
        since = time.time()
        response = await run.client.post(f"/v1/tasks/{task_id}/rewind", json={"checkpoint_id": checkpoint_id})
        response.raise_for_status()
        (rewound,) = await wait_for(run, task_id, "task.rewound", after=last)
        (first, *_) = await wait_for(run, task_id, "model.started", after=rewound["seq"])
        times.append(milliseconds(since, first))
    return times


async def main() -> None:
    turns = [call("shell", command=MAKE), *(call("shell", command=f"sleep 2; echo {n} > n") for n in range(200))]
    async with platform() as run:
        task_id = await run.submit(threads(*turns))
        await wait_for(run, task_id, "agent.tool_result", count=3)
        checkpoint_id = (await newest_checkpoint(run, task_id))["id"]
        answered, called = await forks(run, task_id, checkpoint_id)
        back = await rewinds(run, task_id, checkpoint_id)
        await run.client.post(f"/v1/tasks/{task_id}/cancel")
        await run.end(task_id, TIMEOUT_S)
    report(
        "branching",
        [
            Row(f"fork, {FILES} files", "answered, p95", percentile(answered, 0.95), "ms", 1000),
            Row(f"fork, {FILES} files", "its first model call, p50", percentile(called, 0.5), "ms", 1000),
            Row(f"fork, {FILES} files", "its first model call, p95", percentile(called, 0.95), "ms"),
            Row(f"rewind, {FILES} files", "next model call, p50", percentile(back, 0.5), "ms"),
            Row(f"rewind, {FILES} files", "next model call, p95", percentile(back, 0.95), "ms", 2000),
        ],
    )


if __name__ == "__main__":
    asyncio.run(main())
