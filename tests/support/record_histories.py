"""Records the golden histories anew: plays scripted tasks on the real stack and keeps what their workflows recorded.

    make histories            or: python -m tests.support.record_histories [--accept | scenario …]

``--accept`` records nothing: it replays the histories that are there and, when all fit, notes the code as it is now.
Afterwards ``code.json`` names the workflow code as it is now. Identities of processes and stack traces are left out.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from temporalio.client import Client

from journeyman.apps.embedded.stack import EVERYTHING
from journeyman.platform.kit.temporal import connect
from support.histories import FOLDER, OF_THE_MACHINE, replayer, stored, write_code
from support.inbox import Inbox
from support.platform import Platform, client_of
from support.scripts import approve, coder, plan, planner, reject, reviewer, shell, subtask, work
from support.stack import SessionStack

Scenario = Callable[[Platform], Awaitable[str]]


async def replanned(platform: Platform) -> str:
    """Three rejected rounds, a new plan, acceptance."""
    threads = [
        planner(shell("ls"), plan(subtask("first"))),
        coder(*(turn for n in range(3) for turn in (shell(f"echo {n} > n"), work())), subtask_id="first"),
        *(reviewer(shell("cat n"), reject(f"no {n}"), subtask_id="first", round_=n) for n in (1, 2, 3)),
        planner(plan(subtask("second")), revision=2),
        coder({"text": "Only words."}, shell("echo ok > ok"), work(), subtask_id="second"),
        reviewer(approve(), subtask_id="second"),
    ]
    task_id = await platform.submit(threads, acceptance=["test -e ok"])
    await _ended(platform, task_id, "succeeded")
    return task_id


async def paused(platform: Platform) -> str:
    """Paused and resumed twice, with a message in between that interrupts a command."""
    threads = [planner(plan()), coder(*(shell(f"sleep 0.5; echo {n}") for n in range(5)), work()), reviewer(approve())]
    task_id = await platform.submit(threads)
    await platform.wait_until_event(task_id, "agent.tool_result", 300)
    for _ in range(2):
        await platform.client.post(f"/v1/tasks/{task_id}/pause")
        await platform.wait_until_still(task_id, timeout_s=300)
        await platform.client.post(f"/v1/tasks/{task_id}/resume")
        await platform.client.post(f"/v1/tasks/{task_id}/messages", json={"text": "Go on.", "mode": "interrupt"})
    await _ended(platform, task_id, "succeeded")
    return task_id


async def cancelled(platform: Platform) -> str:
    """Cancelled in the middle of a command."""
    task_id = await platform.submit([planner(plan()), coder(shell("sleep 60"), work()), reviewer(approve())])
    await platform.wait_until_call(task_id, "sleep 60", 300)
    await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    await _ended(platform, task_id, "cancelled")
    return task_id


async def approved(platform: Platform) -> str:
    """The first plan is rejected, the second approved with an edit; of two calls one is approved, one expires."""
    touch = {"tool_calls": [{"name": "shell", "arguments": {"command": f"touch {name}"}} for name in ("a", "b")]}
    threads = [planner(plan()), planner(plan(), revision=2), coder(touch, work()), reviewer(approve())]
    rules = [{"tool": "shell", "pattern": "touch *", "require": "always"}]
    policy = {"plan": "always", "rules": rules, "expires_after_s": 20, "escalate_after_s": 1}
    task_id = await platform.submit(threads, approval_policy=policy)
    inbox = Inbox(platform, task_id)
    (asked,) = await inbox.pending(timeout_s=300)
    await inbox.decide(asked["id"], "reject", note="Smaller.")
    (asked,) = await inbox.pending(timeout_s=300)
    edited = {"subtasks": [subtask() | {"instructions": "Do less."}], "acceptance": []}
    await inbox.decide(asked["id"], "approve", edited=edited)
    first, _ = await inbox.pending(2, timeout_s=300)
    await inbox.decide(first["id"], "approve")
    await _ended(platform, task_id, "succeeded")
    return task_id


async def many_runs(platform: Platform) -> str:
    """Every workflow continues as a new run, several times."""
    threads = [
        planner(*(shell(f"echo {n}") for n in range(10)), plan()),
        coder(*(shell(f"echo {n} > n") for n in range(22)), work()),
        reviewer(shell("cat n"), approve()),
    ]
    task_id = await platform.submit(threads)
    await _ended(platform, task_id, "succeeded")
    return task_id


async def parallel(platform: Platform) -> str:
    """Two subtasks at once, then one that waits for both."""
    last = subtask("c", depends_on=["a", "b"])
    threads = [planner(plan(subtask("a"), subtask("b"), last))]
    for name in ("a", "b", "c"):
        threads += [
            coder(shell(f"echo {name} > {name}"), work(), subtask_id=name),
            reviewer(approve(), subtask_id=name),
        ]
    task_id = await platform.submit(threads, acceptance=["test -e a -a -e b -a -e c"])
    await _ended(platform, task_id, "succeeded")
    return task_id


async def over_budget(platform: Platform) -> str:
    """Stopped at a limit, raised, gone on."""
    threads = [planner(plan()), coder(*(shell(f"echo {n} > n") for n in range(5)), work()), reviewer(approve())]
    task_id = await platform.submit(threads, budget={"max_steps": 4})
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "budget", 300)
    await platform.client.patch(f"/v1/tasks/{task_id}/budget", json={"max_steps": 100})
    await _ended(platform, task_id, "succeeded")
    return task_id


async def rewound(platform: Platform) -> str:
    """Taken back twice in the middle of the work, the second time to the plan."""
    task_id = await platform.submit(_slow_lines(), acceptance=["test -s log"])
    made = await _checkpoints(platform, task_id, 4)
    for checkpoint in (made[3], made[1]):
        answer = await platform.client.post(f"/v1/tasks/{task_id}/rewind", json={"checkpoint_id": checkpoint["id"]})
        answer.raise_for_status()
        await _applied(platform, task_id, answer.json()["id"])
        await platform.wait_until_event(task_id, "agent.tool_result", 300)
    await _ended(platform, task_id, "succeeded")
    return task_id


async def forked(platform: Platform) -> str:
    """A task that begins in the middle of another's work, which is cancelled."""
    task_id = await platform.submit(_slow_lines(), acceptance=["test -s log"])
    made = await _checkpoints(platform, task_id, 4)
    answer = await platform.client.post(f"/v1/tasks/{task_id}/fork", json={"checkpoint_id": made[-1]["id"]})
    answer.raise_for_status()
    fork_id = str(answer.json()["id"])
    platform.submitted.append(fork_id)
    await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    await _ended(platform, fork_id, "succeeded")
    return fork_id


def _slow_lines() -> list[dict[str, Any]]:
    lines = [{**shell(f"echo {n} >> log"), "delay_ms": 500} for n in range(6)]
    return [planner(plan()), coder(*lines, work()), reviewer(approve())]


async def _checkpoints(platform: Platform, task_id: str, count: int) -> list[dict[str, Any]]:
    """Once there are so many, the oldest first."""
    async with asyncio.timeout(300):
        while True:
            found: list[dict[str, Any]] = (await platform.get(f"/v1/tasks/{task_id}/checkpoints", limit=100))["data"]
            if len(found) >= count:
                return found[::-1]
            await asyncio.sleep(0.05)


async def _applied(platform: Platform, task_id: str, rewind_id: str) -> None:
    async with asyncio.timeout(300):
        while not any(
            one["id"] == rewind_id and one["applied_at"]
            for one in (await platform.get(f"/v1/tasks/{task_id}/rewinds"))["data"]
        ):
            await asyncio.sleep(0.05)


SCENARIOS: dict[str, Scenario] = {
    "replanned": replanned,
    "paused": paused,
    "cancelled": cancelled,
    "many-runs": many_runs,
    "parallel": parallel,
    "over-budget": over_budget,
    "approved": approved,
    "rewound": rewound,
    "forked": forked,
}


async def _ended(platform: Platform, task_id: str, state: str) -> None:
    outcome = await platform.end(task_id, 300)
    if outcome.task["state"] != state:
        raise RuntimeError(f"the task ended as {outcome.task['state']}: {outcome.task['failure']}")


async def _keep(client: Client, task_id: str, folder: Path) -> int:
    """Write every run of the task's workflows; returns how many."""
    query = f"(WorkflowId = '{task_id}' OR WorkflowId STARTS_WITH '{task_id}/')"
    async with asyncio.timeout(60):
        # The task's end is in its log a moment before its workflow has ended, and visibility lags behind that.
        while (await client.count_workflows(f"{query} AND ExecutionStatus = 'Running'")).count:
            await asyncio.sleep(0.1)
    runs = [execution async for execution in client.list_workflows(query)]
    runs.sort(key=lambda execution: execution.start_time)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, run in enumerate(runs):
        history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        content = {"workflow_id": run.id, "history": _impersonal(json.loads(history.to_json()))}
        file = folder / f"{number:02d}-{run.workflow_type}.json"
        file.write_text(json.dumps(content, separators=(",", ":"), sort_keys=True) + "\n")
    return len(runs)


def _impersonal(value: Any) -> Any:
    """Without what tells of the machine that recorded it."""
    if isinstance(value, dict):
        return {key: _impersonal(item) for key, item in value.items() if key not in OF_THE_MACHINE}
    if isinstance(value, list):
        return [_impersonal(item) for item in value]
    return value


async def record(names: list[str]) -> None:
    scenarios = {name: scenario for name, scenario in SCENARIOS.items() if name in names}
    stack = SessionStack()
    try:
        running = await stack.ask(*EVERYTHING)
        client = await connect(running.settings)
        async with client_of(running) as platform:
            ids = [await scenario(platform) for scenario in scenarios.values()]
            for name, task_id in zip(scenarios, ids, strict=True):
                print(f"{name}: {await _keep(client, task_id, FOLDER / name)} runs")
    finally:
        await stack.close()
    write_code()


async def accept() -> None:
    for name, history in stored():
        await replayer().replay_workflow(history)
        print(f"{name}: replayed")
    write_code()


if __name__ == "__main__":
    asyncio.run(accept() if sys.argv[1:] == ["--accept"] else record(sys.argv[1:] or [*SCENARIOS]))
