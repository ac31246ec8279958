"""The task of an endurance run: what its scripted agents do, and how long they think.

Commands wait ``$NAP`` times their usual time and models answer after a delay, so that the same task lasts two hours
under fire or two minutes undisturbed. Every effect is a line in a log or a file of its own: what is lost or doubled shows.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Final

Turn = dict[str, Any]

TURNS_PER_PART: Final = 40
"""Of a Coder, before the first hand-over. About: some kinds of work take two."""


@dataclass
class Job:
    """One task: its instruction, its script, its acceptance commands."""

    instruction: str
    parts: int
    turns: int
    seed: int
    threads: list[dict[str, Any]] = field(default_factory=list)
    acceptance: list[str] = field(default_factory=list)

    @property
    def answers(self) -> int:
        """Model answers from the first to the last."""
        return sum(len(thread["turns"]) for thread in self.threads)

    def script(self, think_s: float) -> dict[str, Any]:
        """The script for the replay engine, whose answers take ``think_s`` in the mean; the same wait for the same turn."""
        chance = random.Random(self.seed)
        threads = [
            {
                **thread,
                "turns": [
                    {**turn, "delay_ms": round(think_s * 1000 * chance.uniform(0.3, 1.7), 1)}
                    for turn in thread["turns"]
                ],
            }
            for thread in self.threads
        ]
        return {"name": "endurance", "instruction": self.instruction, "threads": threads}


def make_job(parts: int, turns: int, seed: int) -> Job:
    """A chain of ``parts`` subtasks; every second one is sent back once by its Reviewer."""
    job = Job(f"Endurance task {seed}: write the logs of {parts} parts.", parts, turns, seed)
    names = [f"p{number}" for number in range(1, parts + 1)]
    subtasks = [
        {
            "id": name,
            "title": f"Part {name}",
            "instructions": f"Write the log of {name}.",
            "depends_on": names[:index][-1:],
            "acceptance": [],
        }
        for index, name in enumerate(names)
    ]
    planner = [
        _shell("sleep $((2 * NAP)); ls"),
        _call("submit_plan", subtasks=subtasks, acceptance=["test -d logs"]),
    ]
    job.threads.append({"role": "planner", "turns": planner})
    for index, name in enumerate(names):
        again = index % 2 == 1
        work, lines, size = _work(name, turns, random.Random(seed * 1000 + index))
        work.append(_call("submit_work", summary=f"The log of {name} is written."))
        if again:
            work.append(_log(name, lines, "sleep $((3 * NAP)); "))
            lines += 1
            work.append(_call("submit_work", summary=f"The log of {name} is complete."))
        job.threads.append({"role": "coder", "subtask": name, "turns": work})
        job.threads.extend(_reviews(name, again=again))
        job.acceptance.append(f'test "$(cat logs/{name})" = "$(seq 0 {lines - 1})" && sleep $((2 * NAP))')
        job.acceptance.append(f'test "$(cat files/{name}-* | wc -c)" = {size}')
    return job


def _reviews(name: str, *, again: bool) -> list[dict[str, Any]]:
    look = _shell(f"sleep $((4 * NAP)); sort -nc logs/{name} && wc -l < logs/{name}")
    finding = {"severity": "major", "path": f"logs/{name}", "message": f"The last line of {name} is missing."}
    refuse = _call("submit_review", verdict="request_changes", findings=[finding])
    approve = _call("submit_review", verdict="approve", findings=[])
    verdicts = [refuse, approve] if again else [approve]
    return [
        {"role": "reviewer", "subtask": name, "round": number, "turns": [look, _read(f"logs/{name}"), verdict]}
        for number, verdict in enumerate(verdicts, 1)
    ]


def _work(name: str, turns: int, chance: random.Random) -> tuple[list[Turn], int, int]:
    """A Coder's turns, the number of lines that they write into the log, and the bytes of the files they leave."""
    done: list[Turn] = [_shell("mkdir -p logs files")]
    lines = 0
    size = 0
    number = 0
    kinds = ("line", "slow", "edit", "background", "batch", "output", "failure", "look", "line", "slow")
    while len(done) < turns:
        number += 1
        kind = chance.choice(kinds)
        file = f"files/{name}-{number}"
        match kind:
            case "line":
                done.append(_log(name, lines, f"sleep $(({chance.randint(1, 4)} * NAP)); "))
                lines += 1
            case "slow":
                done.append(
                    _shell(
                        f"for n in $(seq {chance.randint(5, 15)}); do echo tick $n; sleep $NAP; done; echo {lines} >> logs/{name}"
                    )
                )
                lines += 1
            case "edit":
                done.append(_call("write_file", path=file, content=f"draft {number}\n" * 20))
                done.append(_call("edit_file", path=file, old="draft", new="final", replace_all=True))
                size += len(f"final {number}\n" * 20)
            case "background":
                mark = f"/tmp/{name}-{number}"
                done.append(_shell(f"sleep $((5 * NAP)); echo {lines} > {mark}.part; mv {mark}.part {mark}", True))
                # What ran in the background dies with its sandbox. The agent does the work itself then.
                wait = f"for n in $(seq 100); do test -e {mark} && break; sleep 0.1; done"
                done.append(_shell(f"{wait}; test -e {mark} || echo {lines} > {mark}; cat {mark} >> logs/{name}"))
                lines += 1
            case "batch":
                content = f"{name} {number}\n"
                calls = [
                    _call("write_file", path=file, content=content),
                    _log(name, lines, "sleep $NAP; "),
                    _call("read_file", path=file),
                    _log(name, lines + 1, ""),
                ]
                done.append(
                    {"text": f"Several things at once: {number}.", "tool_calls": [c["tool_calls"][0] for c in calls]}
                )
                lines += 2
                size += len(content)
            case "output":
                done.append(_shell(f"seq {number} 30000; echo {lines} >> logs/{name}"))
                lines += 1
            case "failure":
                done.append(
                    _shell(f"echo {lines} >> logs/{name}; echo broken {number} >&2; exit {chance.randint(1, 9)}")
                )
                lines += 1
            case _:
                done.append(_call("search", pattern=f"^{max(0, lines - 1)}$", path="logs"))
                done.append(_call("remember", text=f"Part {name} had {lines} lines at turn {len(done)}."))
    return done, lines, size


def _call(tool: str, **arguments: Any) -> Turn:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


def _shell(command: str, background: bool = False) -> Turn:
    more: dict[str, Any] = {"background": True} if background else {}
    return _call("shell", command=command, **more)


def _log(name: str, line: int, before: str) -> Turn:
    return _shell(f"{before}echo {line} >> logs/{name}")


def _read(path: str) -> Turn:
    return _call("read_file", path=path)
