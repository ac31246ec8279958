"""``python -m benchmarks.kills --kills 200 --seed 1``: random processes die, one after the other, under several tasks at once.

Each task is checked when it ends: verified, its log without a gap or a doubled call, each answer paid once. A kill does
not wait for the one before it to be repaired. Minutes long: not part of ``make bench``.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.endurance.machine import EVERYTHING, TERMINAL, Machine
from benchmarks.endurance.projection import LogBroken, project, project_ledger
from benchmarks.platform_run import call
from benchmarks.results import Row, report

LANES = 4
STEPS = 12
LONGEST_S = 1800.0


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    recovery: Counter[str] = field(default_factory=Counter)
    stop: bool = False


def script(name: str, chance: random.Random) -> dict[str, Any]:
    """Twelve steps that each leave a line or a file."""
    turns: list[dict[str, Any]] = []
    for number in range(STEPS):
        nap = chance.choice((0, 0.2, 1.0))
        turn = call("shell", command=f"sleep {nap}; echo {number} >> log")
        turns.append({**turn, "delay_ms": chance.choice((50, 300, 1500))})
        if number % 4 == 3:
            turns.append(call("write_file", path=f"f{number}", content="old\n"))
            turns.append(call("edit_file", path=f"f{number}", old="old", new="old new"))
    subtask = {"id": "s1", "title": "Work", "instructions": "Work.", "depends_on": [], "acceptance": []}
    review = [call("shell", command="cat log"), call("submit_review", verdict="approve", findings=[])]
    return {
        "name": name,
        "instruction": f"Task {name}",
        "threads": [
            {"role": "planner", "turns": [call("submit_plan", subtasks=[subtask], acceptance=[])]},
            {"role": "coder", "subtask": "s1", "turns": [*turns, call("submit_work", summary="Done.")]},
            {"role": "reviewer", "subtask": "s1", "turns": review},
        ],
    }


ACCEPTANCE = [
    f'test "$(cat log)" = "$(seq 0 {STEPS - 1})"',
    'test "$(cat f*)" = "$(printf "old new\\nold new\\nold new")"',
]


async def lane(machine: Machine, number: int, seed: int, tally: Tally) -> None:
    """One task after the other until the kills are done; the last one is carried to its end."""
    chance = random.Random(seed * 100 + number)
    turn = 0
    while not tally.stop:
        turn += 1
        content = script(f"lane-{number}-{turn}", chance)
        machine.write_script(content)
        task_id = await machine.submit(
            instruction=content["instruction"], workspace={"source": "none"}, acceptance=ACCEPTANCE
        )
        try:
            async with asyncio.timeout(LONGEST_S):
                while (task := await machine.call("GET", f"/v1/tasks/{task_id}"))["state"] not in TERMINAL:
                    await asyncio.sleep(0.5)
        except TimeoutError:
            tally.lost.append(f"{task_id} did not end in {LONGEST_S:.0f} s")
            continue
        tally.tasks += 1
        if not task["verified"]:
            tally.lost.append(f"{task_id} ended as {task['state']}: {task['failure']}")
        await check(machine, task_id, tally)


async def check(machine: Machine, task_id: str, tally: Tally) -> None:
    try:
        log = project(await machine.events(task_id))
    except LogBroken as error:
        tally.doubled.append(f"{task_id}: {error}")
        return
    tally.recovery += log.recovery
    problems: list[str] = []
    # What the database could not be told is written a little later.
    for _ in range(30):
        try:
            problems = project_ledger(await machine.ledger(task_id), log).problems
        except Exception as error:  # noqa: BLE001  the database may be the one that was just killed
            problems = [f"the ledger could not be read: {error}"]
        if not problems:
            return
        await asyncio.sleep(1)
    tally.doubled += [f"{task_id}: {problem}" for problem in problems]


async def storm(machine: Machine, kills: int, seed: int, every_s: float, tally: Tally) -> None:
    chance = random.Random(seed)
    while tally.kills.total() < kills:
        await asyncio.sleep(every_s * chance.uniform(0.3, 1.7))
        # Everything at once is the slowest to come back: once in forty.
        victims = [name for name in machine.victims() if name != EVERYTHING]
        victim = EVERYTHING if not victims or chance.random() < 1 / 40 else chance.choice(victims)
        if machine.kill(victim, chance.random()) is None:
            continue
        tally.kills[victim] += 1
        if tally.kills.total() % 10 == 0:
            print(
                f"{tally.kills.total()} kills, {tally.tasks} tasks ended, {len(tally.lost)} lost, {len(tally.doubled)} doubled",
                flush=True,
            )
        if victim == EVERYTHING:
            while machine.supervisor() is not None:
                await asyncio.sleep(0.05)
            await machine.up()
    await machine.wait_until_ready()
    tally.stop = True


async def measure(kills: int, seed: int, every_s: float) -> tuple[list[Row], Tally]:
    tally = Tally()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jm-kil-", ignore_cleanup_errors=True) as root:
        machine = Machine(Path(root))
        machine.make()
        await machine.up()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(storm(machine, kills, seed, every_s, tally))
                for number in range(LANES):
                    group.create_task(lane(machine, number, seed, tally))
        finally:
            await machine.down()
    name = f"random kills, seed {seed}"
    return [
        Row(name, "kills", tally.kills.total(), ""),
        Row(name, "tasks", tally.tasks, ""),
        Row(name, "lost", len(tally.lost), "", 0),
        Row(name, "doubled", len(tally.doubled), "", 0),
        Row(name, "took", time.monotonic() - began, "s"),
    ], tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=5, metavar="S", help="mean seconds between kills")
    given = parser.parse_args()
    rows, tally = asyncio.run(measure(given.kills, given.seed, given.every))
    print(f"killed: {dict(tally.kills)}")
    print(f"recovery: {dict(tally.recovery)}")
    for problem in [*tally.lost, *tally.doubled]:
        print(f"  {problem}")
    report("kills", rows)
    return 1 if tally.lost or tally.doubled else 0


if __name__ == "__main__":
    sys.exit(main())
