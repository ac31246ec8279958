"""``python -m benchmarks.endurance --minutes 120 --seed 7``: a long task, a ``kill -9`` about once a minute, one question.

Does it end verified, with the event log and the ledger of a run that nobody disturbed? The undisturbed run plays
the same script with short waits on a platform of its own, at the same time (waits do not show in the comparison, see
:mod:`.projection`). Everything that happens is written to the report directory at once: ``report.json`` (how it stands),
``kills.jsonl``, and at the end ``disturbed.json`` and ``undisturbed.json`` with the whole logs. Exit code 0: nothing was
lost, nothing doubled.

The scripted model thinks as long as it takes to fill the time; its pace is set anew once a minute.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.endurance.job import Job, make_job
from benchmarks.endurance.machine import EVERYTHING, TERMINAL, Machine
from benchmarks.endurance.projection import (
    LogBroken,
    differences,
    ledger_differences,
    project,
    project_ledger,
)

PARTS_PER_HOUR = 4
LEAST_THINK_S = 0.05
MOST_THINK_S = 60.0


@dataclass
class Report:
    """How the run stands; rewritten after everything that happens."""

    directory: Path
    seed: int
    minutes: float
    commit: str
    started_at: str
    job: dict[str, Any]
    state: str = "starting"
    task_id: str | None = None
    answers: int = 0
    kills: int = 0
    kills_by_victim: dict[str, int] = field(default_factory=dict)
    restarts_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    recovery: dict[str, int] = field(default_factory=dict)
    ledger_recovery: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def save(self) -> None:
        content = asdict(self)
        content["directory"] = str(self.directory)
        path = self.directory / "report.json"
        path.with_suffix(".partial").write_text(json.dumps(content, indent=2) + "\n")
        path.with_suffix(".partial").replace(path)

    def say(self, text: str) -> None:
        print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)
        self.save()

    def note_kill(self, kill: dict[str, Any]) -> None:
        with (self.directory / "kills.jsonl").open("a") as file:
            file.write(json.dumps(kill) + "\n")


class Pace:
    """Keeps the task to its time: how long the model is to think, from what a step took beside that so far."""

    def __init__(self, job: Job, minutes: float) -> None:
        self._job = job
        self._end = time.monotonic() + minutes * 60
        self._last: tuple[float, int] | None = None
        self._beside_s = 6.0
        self.think_s = 5.0

    def next(self, answers: int) -> float:
        """The mean delay of an answer from now on."""
        now = time.monotonic()
        if self._last is not None and answers > self._last[1]:
            per_step = (now - self._last[0]) / (answers - self._last[1])
            self._beside_s += 0.3 * (max(0.0, per_step - self.think_s) - self._beside_s)
        self._last = (now, answers)
        left = max(1, self._job.answers - answers)
        self.think_s = min(MOST_THINK_S, max(LEAST_THINK_S, (self._end - now) / left - self._beside_s))
        return self.think_s


class Watch:
    """Follows the event log from outside while processes die."""

    def __init__(self, machine: Machine, task_id: str) -> None:
        self._machine = machine
        self._task_id = task_id
        self.events: list[dict[str, Any]] = []
        self.state = "queued"

    async def look(self) -> None:
        self.events += await self._machine.events(self._task_id, self.events[-1]["seq"] if self.events else 0)
        self.state = (await self._machine.call("GET", f"/v1/tasks/{self._task_id}"))["state"]

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def answers(self) -> int:
        return sum(event["type"] == "model.completed" for event in self.events)


async def run_to_end(
    machine: Machine, job: Job, report: Report, *, minutes: float, interval_s: float | None, nap: int
) -> tuple[Watch, str]:
    """Submit the job and wait for its end, killing something every ``interval_s`` seconds in the mean if that is given."""
    pace = Pace(job, minutes)
    machine.write_script(job.script(pace.next(0) if interval_s else 0.0))
    task_id = await machine.submit(
        instruction=job.instruction,
        workspace={"source": "none"},
        environment={"env": {"NAP": str(nap)}, "setup": ["sleep $NAP; echo ready > ~/ready"]},
        acceptance=job.acceptance,
    )
    report.task_id = task_id
    report.say(f"task {task_id}, {job.answers} answers to come")
    watch = Watch(machine, task_id)
    storm = asyncio.create_task(_storm(machine, watch, report, interval_s)) if interval_s else None
    paced = time.monotonic()
    try:
        while not watch.ended:
            await asyncio.sleep(1)
            await watch.look()
            report.answers = watch.answers
            if storm is not None and storm.done():
                storm.result()
            if interval_s and time.monotonic() - paced > 60:
                paced = time.monotonic()
                think = pace.next(watch.answers)
                machine.write_script(job.script(think))
                report.say(
                    f"{watch.answers}/{job.answers} answers, {report.kills} kills, thinks {think:.1f} s, {watch.state}"
                )
    finally:
        if storm is not None:
            storm.cancel()
            await asyncio.gather(storm, return_exceptions=True)
    await watch.look()
    return watch, task_id


async def _storm(machine: Machine, watch: Watch, report: Report, interval_s: float) -> None:
    """Kill, see that all comes back and the task moves, wait, again."""
    chance = random.Random(report.seed)
    while True:
        await asyncio.sleep(interval_s * chance.uniform(0.5, 1.5))
        victims = machine.victims()
        victim = chance.choice(victims) if victims else EVERYTHING
        pid = machine.kill(victim, chance.random())
        if pid is None:
            continue
        killed = time.monotonic()
        before = len(watch.events)
        kill = {"time": datetime.now(UTC).isoformat(), "victim": victim, "pid": pid, "after_seq": before}
        report.kills += 1
        report.kills_by_victim[victim] = report.kills_by_victim.get(victim, 0) + 1
        if victim == EVERYTHING:
            kill["restart_s"] = await _start_again(machine, report)
        # A moment, so that its end has been noticed.
        await asyncio.sleep(0.5)
        try:
            await machine.wait_until_ready()
        except TimeoutError:
            report.problems.append(f"not everything was ready again 120 s after {victim} was killed")
        kill["ready_s"] = round(time.monotonic() - killed, 2)
        report.note_kill(kill)
        report.say(f"killed {victim} (pid {pid}); all ready after {kill['ready_s']} s")


async def _start_again(machine: Machine, report: Report) -> float:
    while machine.supervisor() is not None:
        await asyncio.sleep(0.05)
    for _ in range(3):
        try:
            taken = round(await machine.up(), 2)
        except RuntimeError as error:
            report.problems.append(f"start after the kill of everything: {error}")
            report.say(str(error))
        else:
            report.restarts_s.append(taken)
            return taken
    raise RuntimeError("the stack did not start again after everything was killed")


async def disturbed(
    root: Path, job: Job, report: Report, minutes: float, interval_s: float, begun: asyncio.Event
) -> dict[str, Any]:
    machine = Machine(root / "d")
    machine.make()
    await machine.up()
    begun.set()
    began = time.monotonic()
    report.state = "disturbed run"
    watch, task_id = await run_to_end(machine, job, report, minutes=minutes, interval_s=interval_s, nap=1)
    report.wall_s = round(time.monotonic() - began, 1)
    return await _collect(machine, watch, task_id, report.directory / "disturbed.json")


async def undisturbed(root: Path, job: Job, report: Report, begun: asyncio.Event) -> dict[str, Any]:
    machine = Machine(root / "u")
    # One start at a time: each takes all of a small machine.
    await begun.wait()
    machine.make()
    await machine.up()
    quiet = Report(report.directory / "undisturbed", report.seed, 0, report.commit, report.started_at, report.job)
    quiet.directory.mkdir(exist_ok=True)
    try:
        watch, task_id = await run_to_end(machine, job, quiet, minutes=0, interval_s=None, nap=0)
        return await _collect(machine, watch, task_id, report.directory / "undisturbed.json")
    finally:
        await machine.down()


async def _collect(machine: Machine, watch: Watch, task_id: str, file: Path) -> dict[str, Any]:
    await machine.wait_until_ready()
    # A settlement that the database missed is written in the background.
    await asyncio.sleep(6)
    found = {
        "task": await machine.call("GET", f"/v1/tasks/{task_id}"),
        "events": watch.events,
        "ledger": [asdict(row) for row in await machine.ledger(task_id)],
    }
    file.write_text(json.dumps(found))
    return found


def compare(calm: dict[str, Any], stormy: dict[str, Any], report: Report) -> None:
    """Fill in the report's problems, and what was compared."""
    from benchmarks.endurance.projection import LedgerRow

    for name, run in (("undisturbed", calm), ("disturbed", stormy)):
        task = run["task"]
        if task["state"] != "succeeded" or task["verified"] is not True:
            report.problems.append(f"{name}: ended {task['state']}, verified {task['verified']}: {task['failure']}")
    try:
        left, right = project(calm["events"]), project(stormy["events"])
    except LogBroken as error:
        report.problems.append(f"an event log contradicts itself: {error}")
        return
    books = [
        project_ledger((LedgerRow(**row) for row in run["ledger"]), log) for run, log in ((calm, left), (stormy, right))
    ]
    report.problems += differences(left, right)
    report.problems += ledger_differences(books[0], books[1], right)
    report.recovery = dict(right.recovery)
    report.ledger_recovery = dict(books[1].recovery)
    report.compared = {
        "events disturbed": len(stormy["events"]),
        "events undisturbed": len(calm["events"]),
        "entries compared": len(left.entries),
        "paid calls compared": len(books[0].paid),
    }


async def endurance(minutes: float, seed: int, interval_s: float, directory: Path, *, keep: bool) -> int:
    parts = max(2, round(minutes / 60 * PARTS_PER_HOUR))
    turns = 40 if minutes >= 20 else 8
    job = make_job(parts, turns, seed)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    shape = {"parts": parts, "turns": turns, "answers": job.answers}
    report = Report(directory, seed, minutes, commit, datetime.now(UTC).isoformat(), shape)
    root = Path(tempfile.mkdtemp(prefix="jm-end-"))
    report.say(
        f"endurance: {minutes:g} minutes, seed {seed}, {job.answers} answers, report in {directory}, data in {root}"
    )
    # Side by side: the undisturbed one is soon done.
    begun = asyncio.Event()
    quiet = asyncio.create_task(undisturbed(root, job, report, begun))
    try:
        stormy = await disturbed(root, job, report, minutes, interval_s, begun)
        report.say(f"ended as {stormy['task']['state']} after {report.wall_s:.0f} s and {report.kills} kills")
        calm = await quiet
    finally:
        quiet.cancel()
        await asyncio.gather(quiet, return_exceptions=True)
        await Machine(root / "d").down()
    report.state = "compared"
    compare(calm, stormy, report)
    report.state = "equal" if not report.problems else "DIFFERENT"
    report.say(f"{report.state}: {report.compared}, recovery {report.recovery}, ledger {report.ledger_recovery}")
    for problem in report.problems:
        print(f"  {problem}")
    if not keep and not report.problems:
        subprocess.run(["rm", "-rf", str(root)], check=False)
    return 1 if report.problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120, help="how long the disturbed task takes (default 120)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the work, the victims and the moments")
    parser.add_argument("--every", type=float, default=60, metavar="S", help="mean seconds between kills (default 60)")
    parser.add_argument(
        "--report", type=Path, help="directory for the report (default benchmarks/results/endurance-SEED)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the data directories")
    given = parser.parse_args()
    directory: Path = given.report or Path(__file__).parents[1] / "results" / f"endurance-{given.seed}"
    directory.mkdir(parents=True, exist_ok=True)
    return asyncio.run(endurance(given.minutes, given.seed, given.every, directory.absolute(), keep=given.keep))


if __name__ == "__main__":
    sys.exit(main())
