"""What the platform adds to each step of an agent: a model call answered at once, one ``shell`` call, one checkpoint."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from benchmarks.cpu import Usage, watching
from benchmarks.platform_run import call, platform, threads
from benchmarks.results import Row, percentile, report

STEPS = 150
UNCHANGED_STEPS = 55
"""Below what the circuit breaker lets a Coder do without changing anything."""
WARM_UP = 10


@dataclass(frozen=True)
class Steps:
    """``times``: milliseconds from one start of a model call to the next. ``cpu``: what all of them used together."""

    times: list[float]
    cpu: Usage

    def rows(self, what: str) -> list[Row]:
        by_cost = [(kind, spent / len(self.times)) for kind, spent in self.cpu.most_common()]
        return [
            Row(what, "p50", percentile(self.times, 0.5), "ms", 80),
            Row(what, "p95", percentile(self.times, 0.95), "ms", 200),
            Row(what, "CPU", sum(cost for _, cost in by_cost), "ms"),
            *(Row(what, f"CPU {kind}", cost, "ms") for kind, cost in by_cost if cost >= 0.5),
        ]


def starts(events: list[dict[str, Any]]) -> list[datetime]:
    """When the Coder's model calls began."""
    return [
        datetime.fromisoformat(event["time"])
        for event in events
        if event["type"] == "model.started" and event["data"]["role"] == "coder"
    ][WARM_UP:]


async def measure(*runs: list[dict[str, Any]]) -> list[Steps]:
    """The steps of each run of turns, one after the other on the same platform."""
    measured: list[Steps] = []
    async with platform() as run:
        for turns in runs:
            async with watching(run.stack) as watch:
                task_id = await run.submit(threads(*turns))
                task = await run.end(task_id, 300)
            if task["state"] != "succeeded":
                raise RuntimeError(f"the task ended as {task['state']}: {task['failure']}")
            begun = starts(await run.events(task_id))
            times = [(later - earlier).total_seconds() * 1000 for earlier, later in pairwise(begun)]
            measured.append(Steps(times, watch.between(begun[0], begun[-1])))
    return measured


def main() -> None:
    # Every command differs: repeating itself would trip the circuit breaker.
    changing = [call("shell", command=f"echo {number} > n") for number in range(STEPS)]
    looking = [call("shell", command=f"echo {number}") for number in range(UNCHANGED_STEPS)]
    changed, unchanged = asyncio.run(measure(changing, looking))
    report("steps", [*unchanged.rows("agent step, nothing changed"), *changed.rows("agent step, a file changed")])


if __name__ == "__main__":
    main()
