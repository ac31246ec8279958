"""A worker of other workflow code takes over: running tasks go on with it from where they were, and nothing is done twice."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.client import Client

from journeyman.apps.cli import deployments as cli
from journeyman.apps.embedded.roles import environment_of
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.apps.exits import Exit
from journeyman.platform.kit import deployments
from journeyman.platform.kit.temporal import connect
from journeyman.workflows.fingerprint import fingerprint
from support.platform import Outcome, Platform
from support.scripts import approve, coder, plan, planner, reject, reviewer, shell, work

LINES = 10


@asynccontextmanager
async def other_worker(stack: EmbeddedStack, build_id: str) -> AsyncIterator[None]:
    """One more worker process, of another version of the workflow code."""
    settings = stack.settings.model_copy(update={"worker_build_id": build_id, "worker_versioning": "pinned"})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "journeyman.apps.cli.main", "worker", env=environment_of(settings)
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def temporal(full_stack: EmbeddedStack) -> AsyncIterator[Client]:
    """The stack's version is the current one again at the end."""
    client = await connect(full_stack.settings)
    yield client
    data_dir = full_stack.settings.data_dir
    assert await asyncio.to_thread(cli.current, data_dir, None) == Exit.OK
    assert await asyncio.to_thread(cli.move, data_dir, None) == Exit.OK
    assert await deployments.current_version(client) == fingerprint()


async def until_there(temporal: Client, build_id: str) -> None:
    """Wait for the worker, which takes its time to start."""
    async with asyncio.timeout(120):
        while not any(each.build_id == build_id and each.workers for each in await deployments.versions(temporal)):
            await asyncio.sleep(0.2)


def check(outcome: Outcome) -> None:
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert outcome.task["verified"] is True
    calls = [event["data"]["call_id"] for event in outcome.of("agent.tool_call")]
    results = [event["data"]["call_id"] for event in outcome.of("agent.tool_result")]
    assert len(calls) == len(set(calls))
    assert sorted(calls) == sorted(results)
    for type_ in ("subtask.started", "subtask.completed", "plan.proposed", "task.completed", "task.paused"):
        assert len(outcome.of(type_)) == 1, type_


@pytest.mark.slow
async def test_running_tasks_move_to_a_worker_of_other_code(
    platform: Platform, full_stack: EmbeddedStack, temporal: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = [
        planner(plan()),
        coder(*(shell(f"sleep 1; echo {n} >> log") for n in range(LINES)), work(), shell("echo more >> log"), work()),
        reviewer(reject("more is missing")),
        reviewer(approve(), round_=2),
    ]
    assert await deployments.current_version(temporal) == fingerprint()
    async with other_worker(full_stack, "next"):
        await until_there(temporal, "next")
        running = await platform.submit(threads, acceptance=[f"test $(wc -l < log) = {LINES + 1}"])
        paused = await platform.submit(threads, acceptance=[f"test $(wc -l < log) = {LINES + 1}"])
        for task_id in (running, paused):
            await platform.wait_until_event(task_id, "agent.tool_result", 120)
            await platform.client.post(f"/v1/tasks/{task_id}/pause")
            await platform.wait_for(task_id, lambda task: task["paused_reason"] == "user")
        await platform.client.post(f"/v1/tasks/{running}/resume")
        await deployments.make_current(temporal, "next")
        assert await deployments.move(temporal) == 2
        async with asyncio.timeout(60):
            while await deployments.count_tasks(temporal, "next") < 2:
                await asyncio.sleep(0.2)
        assert (await platform.task(paused))["paused_reason"] == "user"
        await platform.client.post(f"/v1/tasks/{paused}/resume")
        await asyncio.to_thread(cli.status, full_stack.settings.data_dir, as_json=False)
        assert "next" in capsys.readouterr().out
        check(await platform.end(running, 180))
        check(await platform.end(paused, 180))
