"""What the platform adds to each step of an agent: a model call answered at once, one ``shell`` call, one checkpoint."""

import asyncio
from datetime import datetime
from itertools import pairwise
from typing import Any

from benchmarks.platform_run import call, platform, threads
from benchmarks.results import Row, percentile, report

STEPS = 150
UNCHANGED_STEPS = 55
"""Below what the circuit breaker lets a Coder do without changing anything."""
WARM_UP = 10


def step_times(events: list[dict[str, Any]]) -> list[float]:
    """Milliseconds from one start of the Coder's model calls to the next."""
    starts = [
        datetime.fromisoformat(event["time"])
        for event in events
        if event["type"] == "model.started" and event["data"]["role"] == "coder"
    ]
    return [(later - earlier).total_seconds() * 1000 for earlier, later in pairwise(starts)]


async def measure(*runs: list[dict[str, Any]]) -> list[list[float]]:
    """The step times of each run of turns, one after the other on the same platform."""
    times: list[list[float]] = []
    async with platform() as run:
        for turns in runs:
            task_id = await run.submit(threads(*turns))
            task = await run.end(task_id, 300)
            if task["state"] != "succeeded":
                raise RuntimeError(f"the task ended as {task['state']}: {task['failure']}")
            times.append(step_times(await run.events(task_id))[WARM_UP:])
    return times


def main() -> None:
    # Every command differs: repeating itself would trip the circuit breaker.
    changing = [call("shell", command=f"echo {number} > n") for number in range(STEPS)]
    looking = [call("shell", command=f"echo {number}") for number in range(UNCHANGED_STEPS)]
    changed, unchanged = asyncio.run(measure(changing, looking))
    report(
        "steps",
        [
            Row("agent step, nothing changed", "p50", percentile(unchanged, 0.5), "ms", 80),
            Row("agent step, nothing changed", "p95", percentile(unchanged, 0.95), "ms", 200),
            Row("agent step, a file changed", "p50", percentile(changed, 0.5), "ms", 80),
            Row("agent step, a file changed", "p95", percentile(changed, 0.95), "ms", 200),
        ],
    )


if __name__ == "__main__":
    main()
