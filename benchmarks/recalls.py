"""Sixteen tasks at once with memory and without: how many recalls the index answers, and what memory costs a task."""

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from benchmarks.platform_run import Run, call, platform, threads
from benchmarks.results import Row, percentile, report

TASKS: Final = 16
ROUNDS: Final = 2
KNOWN: Final = 60
"""Memories that the project has before."""
TIMEOUT_S: Final = 600
_DETAILS: Final = " ".join(
    f"Requirement {number}: what partner {number} takes is told in its contract, and must be kept."
    for number in range(20)
)
"""As long as what people write: about 1,700 characters."""


@dataclass
class Measured:
    """``tasks`` in seconds from submission to the end, ``recalls`` in milliseconds from call to result."""

    tasks: list[float] = field(default_factory=list)
    recalls: list[float] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    """Recalls by what answered: ``index``, or the reason why it did not."""
    openings_degraded: int = 0
    """Of these, recalls for a Planner's opening."""

    def rows(self, what: str) -> list[Row]:
        rows = [
            Row(what, "task p50", percentile(self.tasks, 0.5), "s"),
            Row(what, "task p95", percentile(self.tasks, 0.95), "s"),
            Row(what, "recall call p50", percentile(self.recalls, 0.5), "ms"),
            Row(what, "recall call p95", percentile(self.recalls, 0.95), "ms"),
        ]
        if total := self.answered.total():
            degraded = total - self.answered["index"]
            rows += [Row(what, "recalls", total, ""), Row(what, "recalls degraded", 100 * degraded / total, "%", 5)]
            rows += [Row(what, f"recalls degraded: {why}", n, "") for why, n in self.answered.items() if why != "index"]
            rows.append(Row(what, "recalls degraded: of openings", self.openings_degraded, ""))
        return rows


def turns() -> list[dict[str, Any]]:
    """A Coder that looks up, writes down and works; no text comes twice."""
    made: list[dict[str, Any]] = []
    for number in range(4):
        name = uuid.uuid4().hex[:8]
        made += [
            call("recall", query=f"Which format do labels of the parcel service {name} have?"),
            call("shell", command=f"echo {name} > n{number}"),
            call(
                "remember",
                text=f"The parcel service {name} takes labels as PDF, {number} to a page, and wants them by noon.",
            ),
        ]
    return made


async def measure(run: Run, into: Measured, **fields: Any) -> None:
    """One round of tasks that begin at once."""
    instructions = [f"Print labels for the parcel service {uuid.uuid4()}. {_DETAILS}" for _ in range(TASKS)]
    ids = await asyncio.gather(*(run.submit(threads(*turns()), each, **fields) for each in instructions))
    for ended in await asyncio.gather(*(run.end(task_id, TIMEOUT_S) for task_id in ids)):
        if ended["state"] != "succeeded":
            raise RuntimeError(f"a task ended as {ended['state']}: {ended['failure']}")
        begun: dict[str, datetime] = {}
        events = await run.events(ended["id"])
        into.tasks.append((_time(events[-1]) - _time(events[0])).total_seconds())
        for event in events:
            data = event["data"]
            if event["type"] == "agent.tool_call" and data["tool"] == "recall":
                begun[data["call_id"]] = _time(event)
            elif event["type"] == "agent.tool_result" and data["call_id"] in begun:
                into.recalls.append((_time(event) - begun[data["call_id"]]).total_seconds() * 1000)
            elif event["type"] == "memory.recalled":
                into.answered[data.get("reason") or ("unsaid" if data["degraded"] else "index")] += 1
                into.openings_degraded += data["degraded"] and not begun


def _time(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])


async def run_all() -> list[Row]:
    with_memory, without = Measured(), Measured()
    async with platform() as run:
        for number in range(KNOWN):
            text = f"Partner {number} of the shop takes labels as {('PDF', 'ZPL', 'SVG')[number % 3]}, {uuid.uuid4().hex[:8]}."
            (await run.client.post("/v1/memory", json={"text": text})).raise_for_status()
        await measure(run, Measured())
        # By turns, so that both see the same machine.
        for _ in range(ROUNDS):
            await measure(run, without, memory={"read": False, "write": False})
            await measure(run, with_memory)
    return [*with_memory.rows(f"{TASKS} tasks at once"), *without.rows(f"{TASKS} tasks at once, memory off")]


def main() -> None:
    report("recalls", asyncio.run(run_all()))


if __name__ == "__main__":
    main()
