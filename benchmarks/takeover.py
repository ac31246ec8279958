"""How soon another worker goes on when one is killed: from ``kill -9`` to the next thing that another one does.

Two moments: in the middle of a model call (until the next worker has begun the step, and so joined the call), and under a
command that ends before another worker notices (until its result is there). The dead worker has the workflow in its cache, too.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from benchmarks.platform_run import Run, call, platform, threads
from benchmarks.results import Row, percentile, report
from journeyman.apps.embedded.specs import Part, Status
from journeyman.platform.kit.names import subtask_workflow_id

SAMPLES = 10
TARGET_S = 3.0

Event = dict[str, Any]


async def holder(run: Run, client: Client, workflow_id: str, activity: str) -> Part:
    """The worker with the workflow's running activity."""
    while True:
        description = await client.get_workflow_handle(workflow_id).describe()
        for pending in description.raw_description.pending_activities:
            if (
                pending.activity_type.name == activity
                and pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
                and (part := _worker(run, pending.last_worker_identity)) is not None
            ):
                return part
        await asyncio.sleep(0.02)


def _worker(run: Run, identity: str) -> Part | None:
    pid = identity.partition("@")[0]
    return next((part for part in run.stack.parts if str(part.pid) == pid), None)


async def wait_for(run: Run, task_id: str, wanted: Callable[[Event], bool], count: int = 1) -> Event:
    async with asyncio.timeout(60):
        while True:
            found = [event for event in await run.events(task_id) if wanted(event)]
            if len(found) >= count:
                return found[count - 1]
            await asyncio.sleep(0.02)


def kill(part: Part) -> datetime:
    assert part.pid is not None
    moment = datetime.now(UTC)
    os.kill(part.pid, signal.SIGKILL)
    return moment


def is_of_coder(type_: str, **data: Any) -> Callable[[Event], bool]:
    def wanted(event: Event) -> bool:
        found = event["data"]
        return event["type"] == type_ and found.get("role") == "coder" and data.items() <= found.items()

    return wanted


async def under_a_model_call(run: Run, client: Client) -> tuple[float, str]:
    task_id = await run.submit(threads({**call("shell", command="true"), "delay_ms": 5000}))
    await wait_for(run, task_id, is_of_coder("model.started"))
    moment = kill(await holder(run, client, subtask_workflow_id(task_id, "s1", 1), "run_step"))
    return _seconds(moment, await wait_for(run, task_id, is_of_coder("model.started", attempt=2))), task_id


async def under_a_command(run: Run, client: Client) -> tuple[float, str]:
    # The first call has leased the sandbox: the command runs as soon as it is announced.
    task_id = await run.submit(threads(call("shell", command="true"), call("shell", command="sleep 0.8")))
    await wait_for(run, task_id, is_of_coder("agent.tool_call"), count=2)
    part = await holder(run, client, subtask_workflow_id(task_id, "s1", 1), "run_step")
    await asyncio.sleep(0.3)
    moment = kill(part)
    return _seconds(moment, await wait_for(run, task_id, is_of_coder("agent.tool_result"), count=2)), task_id


def _time(event: Event) -> datetime:
    return datetime.fromisoformat(event["time"])


def _seconds(moment: datetime, event: Event) -> float:
    return (_time(event) - moment).total_seconds()


async def sample(
    run: Run, client: Client, take: Callable[[Run, Client], Awaitable[tuple[float, str]]], samples: int
) -> list[float]:
    times: list[float] = []
    for _ in range(samples):
        while any(part.status is not Status.READY for part in run.stack.parts):
            await asyncio.sleep(0.05)
        seconds, task_id = await take(run, client)
        task = await run.end(task_id, 60)
        if task["state"] != "succeeded":
            raise RuntimeError(f"a task ended as {task['state']}: {task['failure']}")
        times.append(seconds)
    return times


async def measure() -> list[Row]:
    rows: list[Row] = []
    everything: list[float] = []
    async with platform() as run:
        client = await Client.connect(run.stack.settings.temporal_address)
        for name, take in (
            ("killed under a model call", under_a_model_call),
            ("killed under a command", under_a_command),
        ):
            times = await sample(run, client, take, SAMPLES)
            print(name, [round(seconds, 2) for seconds in times], flush=True)
            everything += times
            rows.append(Row(f"takeover: {name}", f"p50 of {len(times)}", percentile(times, 0.5), "s"))
            rows.append(Row(f"takeover: {name}", "max", max(times), "s"))
    rows.append(Row("takeover: all", f"p95 of {len(everything)}", percentile(everything, 0.95), "s", TARGET_S))
    return rows


if __name__ == "__main__":
    report("takeover", asyncio.run(measure()))
