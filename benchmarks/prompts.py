"""How much of what is sent to the engine its prefix cache has already: bytes shared with the request before, of all bytes.

One task with all three roles, tool errors, long outputs and a review round; the bodies are those that reached the engine.
"""

import asyncio
from itertools import pairwise

from tests.support.requests import conversations, shared_prefix

from benchmarks.platform_run import call, platform
from benchmarks.results import Row, report

TURNS = 40


def scripted() -> list[dict[str, object]]:
    subtask = {"id": "s1", "title": "Work", "instructions": "Work.", "depends_on": [], "acceptance": []}
    finding = {"severity": "major", "message": "More is needed."}
    looks = [call("shell", command=f"seq {n} {n + 300}") for n in range(TURNS // 2)]
    steps = [call("shell", command=f"echo {n} >> log; seq {n} {n + 500}") for n in range(TURNS - 1)]
    broken = {"tool_calls": [{"name": "shell", "raw_arguments": '{"command": '}]}
    done = call("submit_work", summary="Done.")
    return [
        {"role": "planner", "turns": [*looks, call("submit_plan", subtasks=[subtask], acceptance=[])]},
        {"role": "coder", "subtask": "s1", "turns": [broken, *steps, done, call("shell", command="echo more"), done]},
        {
            "role": "reviewer",
            "round": 1,
            "turns": [*looks, call("submit_review", verdict="request_changes", findings=[finding])],
        },
        {"role": "reviewer", "round": 2, "turns": [call("submit_review", verdict="approve", findings=[])]},
    ]


async def run() -> list[Row]:
    async with platform() as running:
        task_id = await running.submit(scripted(), record=True)
        task = await running.end(task_id, 600)
        if task["state"] != "succeeded":
            raise RuntimeError(f"the task ended as {task['state']}: {task['failure']}")
        (folder,) = running.scripts.glob("*.requests")
        bodies = [file.read_bytes() for file in sorted(folder.iterdir())]
    rows = []
    missed = 0.0
    for key, requests in conversations(bodies).items():
        if len(requests) < 2:
            continue
        later = sum(len(each.head) + len(each.array) for each in requests[1:])
        shared = sum(shared_prefix(former, latter) for former, latter in pairwise(requests))
        expected = sum(len(each.head) + len(each.array) for each in requests[:-1])
        missed += expected - shared
        name = f"{key[0]}, {len(requests)} requests"
        rows.append(Row(name, "bytes that the prefix cache has, of all", 100 * shared / later, "%"))
    rows.append(Row("all roles", "bytes of earlier requests that changed", missed, "bytes", 0))
    return rows


def main() -> None:
    report("prompts", asyncio.run(run()))


if __name__ == "__main__":
    main()
