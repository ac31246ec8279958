"""What the platform adds to each step of an agent: a model call answered at once, one ``shell`` call, one checkpoint."""

import asyncio
from datetime import datetime
from itertools import pairwise
from typing import Any

from benchmarks.platform_run import call, platform, threads
from benchmarks.results import Row, percentile, report

STEPS = 150
WARM_UP = 10


def step_times(events: list[dict[str, Any]]) -> list[float]:
    """Milliseconds from one start of the Coder's model calls to the next."""
    starts = [
        datetime.fromisoformat(event["time"])
        for event in events
        if event["type"] == "model.started" and event["data"]["role"] == "coder"
    ]
    return [(later - earlier).total_seconds() * 1000 for earlier, later in pairwise(starts)]


async def measure(turns: list[dict[str, Any]]) -> list[float]:
    async with platform() as run:
        task_id = await run.submit(threads(*turns))
        task = await run.end(task_id, 300)
        if task["state"] != "succeeded":
            raise RuntimeError(f"the task ended as {task['state']}: {task['failure']}")
        return step_times(await run.events(task_id))[WARM_UP:]


def main() -> None:
    # Every command differs and writes a file: repeating itself would trip the circuit breaker, and an unchanged workspace
    # would make checkpoints cheaper than they are in real work.
    changing = [call("shell", command=f"echo {number} > n") for number in range(STEPS)]
    times = asyncio.run(measure(changing))
    report(
        "steps",
        [
            Row("agent step, file changed", "p50", percentile(times, 0.5), "ms", 80),
            Row("agent step, file changed", "p95", percentile(times, 0.95), "ms", 200),
        ],
    )


if __name__ == "__main__":
    main()
