"""Several machines with sandboxes: steps go to the queue of the node that holds their sandbox, and away from one that died."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType

from journeyman.apps.embedded.roles import environment_of
from journeyman.apps.embedded.stack import EVERYTHING, EmbeddedStack
from journeyman.platform.kit.names import Queue, node_queue, subtask_workflow_id
from journeyman.platform.kit.temporal import connect
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.registry import reap
from journeyman.workflows import timing
from support.holding import command_running, holder
from support.inbox import Inbox
from support.oracle import check_verified
from support.platform import Platform, client_of
from support.scripts import approve, coder, plan, planner, reviewer, shell, simple, work
from support.stack import SessionStack, kill_and_wait


@pytest.fixture(scope="module")
async def nodes() -> AsyncIterator[EmbeddedStack]:
    """A stack whose machine is one node of several."""
    stack = SessionStack(single_node=False)
    try:
        yield await stack.ask(*EVERYTHING)
    finally:
        await stack.close()


@pytest.fixture
async def platform(nodes: EmbeddedStack) -> AsyncIterator[Platform]:
    async with client_of(nodes) as running:
        yield running


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """The data directory of another machine. A short path: sandboxes have sockets in it."""
    with tempfile.TemporaryDirectory(prefix="jm-sbx-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@asynccontextmanager
async def other_node(stack: EmbeddedStack, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another machine's worker: a process with sandboxes of its own."""
    root = directory / "sandboxes"
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "journeyman.apps.cli.main",
            "worker",
            "--roles",
            "sandboxes",
            env={**environment_of(stack.settings), "JOURNEYMAN_DATA_DIR": str(directory)},
            stdout=log,
            stderr=log,
        )
    try:
        async with asyncio.timeout(240):
            while b"worker polls" not in (directory / "log").read_bytes():
                assert process.returncode is None, (directory / "log").read_text()
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        reap(root, set())


async def queues_of_steps(stack: EmbeddedStack, task_id: str) -> list[str]:
    """The queue of each step that the newest run of the subtask's workflow has asked for, in order."""
    client = await connect(stack.settings)
    history = await client.get_workflow_handle(subtask_workflow_id(task_id, "s1", 1)).fetch_history()
    asked = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    return [each.task_queue.name for each in asked if each.activity_type.name == "run_step"]


async def test_steps_go_to_the_queue_of_their_node(platform: Platform, nodes: EmbeddedStack) -> None:
    steps = [shell(f"echo {number} >> log") for number in range(3)]
    task_id = await platform.submit(simple(*steps), acceptance=['test "$(cat log)" = "$(printf "0\\n1\\n2")"'])
    await check_verified(nodes, await platform.end(task_id))
    node = LocalSandboxDriver(nodes.settings.sandbox_dir).node
    assert node is not None
    assert {*await queues_of_steps(nodes, task_id)} == {Queue.SANDBOXES, node_queue(node)}


async def test_workers_of_one_node_take_over_from_each_other(platform: Platform, nodes: EmbeddedStack) -> None:
    threads = simple(shell("true"), shell("echo begun >> log; sleep 4.0127; echo done >> log"))
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(printf "begun\\ndone")"'])
    await command_running("4.0127")
    worker = await holder(nodes, subtask_workflow_id(task_id, "s1", 1), "run_step")
    await kill_and_wait(nodes, worker.name, 60)
    log = await check_verified(nodes, await platform.end(task_id))
    assert log.recovery["reattached"] == 1


async def test_calls_wait_for_approval(platform: Platform) -> None:
    policy = {"rules": [{"tool": "shell", "pattern": "touch *", "require": "always"}]}
    threads = [planner(plan()), coder(shell("touch a"), work()), reviewer(approve())]
    task_id = await platform.submit(threads, approval_policy=policy, acceptance=["test -e a"])
    await Inbox(platform, task_id).approve_all(1)
    assert (await platform.end(task_id)).task["verified"] is True


async def coders_sandbox(platform: Platform, task_id: str) -> str:
    """The sandbox of the Coder's thread."""
    events = await platform.events(task_id)
    threads = {event["thread_id"] for event in events if event["data"].get("role") == "coder"}
    leased = [event for event in events if event["type"] == "sandbox.leased" and event["thread_id"] in threads]
    return str(leased[-1]["data"]["sandbox_id"])


@pytest.mark.slow
async def test_a_dead_node_is_replaced_by_another(platform: Platform, nodes: EmbeddedStack, elsewhere: Path) -> None:
    """No sandbox counts as lost while its node lives; those of a dead one are replaced elsewhere, and their steps go on."""
    steps = [shell(f"echo {number} >> log; sleep 0.3") for number in range(8)]
    content = "".join(f"{number}\\n" for number in range(len(steps)))
    acceptance = [f'test "$(cat log)" = "$(printf \'{content}\')"']
    async with other_node(nodes, elsewhere) as worker:
        tasks = [await platform.submit(simple(*steps), acceptance=acceptance) for _ in range(3)]
        for outcome in await asyncio.gather(*(platform.end(task_id, 120) for task_id in tasks)):
            assert outcome.task["verified"] is True
            assert outcome.of("sandbox.replaced") == []
        # Until a Coder works on the other node, which then dies with all its sandboxes.
        for _ in range(20):
            task_id = await platform.submit(simple(*steps), acceptance=["test -s log"])
            await platform.wait_until_call(task_id, "echo 3 ")
            lost = await coders_sandbox(platform, task_id)
            if (elsewhere / "sandboxes" / lost).exists():
                break
            await platform.client.post(f"/v1/tasks/{task_id}/cancel")
        else:
            pytest.fail("the other node got no work")
        os.kill(worker.pid, signal.SIGKILL)
        await worker.wait()
        reap(elsewhere / "sandboxes", set())
        outcome = await platform.end(task_id, 90 + timing.NODE_SILENT.total_seconds())
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert lost in [event["data"]["lost_sandbox_id"] for event in outcome.of("sandbox.replaced")]
    ended = {event["data"]["sandbox_id"]: event["data"] for event in outcome.of("sandbox.released")}
    assert ended[lost]["lost"] is True
