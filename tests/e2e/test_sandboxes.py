"""Sandboxes that run into their limits or get lost, as the agent and the log see it."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from journeyman.platform.embedded.roles import environment_of
from journeyman.platform.embedded.stack import EmbeddedStack
from journeyman.platform.leases.nodes import DEAD_AFTER
from journeyman.platform.sandboxes.registry import Record, reap
from support.platform import Outcome, Platform
from support.scripts import call, shell, simple


async def sandbox_of(platform: Platform, task_id: str, role: str = "coder") -> str:
    """The newest sandbox of the role's thread."""
    events = await platform.events(task_id)
    threads = {event["thread_id"] for event in events if event["data"].get("role") == role}
    leased = [
        event["data"]["sandbox_id"]
        for event in events
        if event["type"] in {"sandbox.leased", "sandbox.replaced"} and event["thread_id"] in threads
    ]
    return str(leased[-1])


def ends(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {event["data"]["sandbox_id"]: event["data"] for event in outcome.of("sandbox.released")}


async def test_a_lost_sandbox_is_replaced_and_the_agent_told(platform: Platform, full_stack: EmbeddedStack) -> None:
    server = "python3 -m http.server 8000 --bind 127.0.0.1"
    task_id = await platform.submit(
        simple(
            shell("echo kept > file"),
            shell(server, background=True),
            shell("exit 3", background=True),
            shell("test ! -e other; echo $?; echo gone > other; sleep 20"),
            shell("cat file"),
        ),
        acceptance=["test -f file"],
    )
    await platform.wait_until_call(task_id, "sleep 20")
    lost = await sandbox_of(platform, task_id)
    record = Record.load(full_stack.settings.sandbox_dir / lost)
    assert record is not None
    record.end()
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded"
    results = outcome.results("shell")
    assert results[3]["error"] == "sandbox_lost"
    assert "The sandbox was lost and replaced" in results[3]["text"]
    assert f"- {server}\n" in results[3]["text"]
    # The scripted agent does what a real one would: it runs the command again, in what the last checkpoint held.
    assert results[4]["text"].startswith("0\n")
    assert results[5]["text"].startswith("kept\n")
    [replaced] = outcome.of("sandbox.replaced")
    assert replaced["data"]["lost_sandbox_id"] == lost
    leased = {event["data"]["sandbox_id"] for event in outcome.of("sandbox.leased", "sandbox.replaced")}
    assert ends(outcome).keys() == leased
    assert [end["sandbox_id"] for end in ends(outcome).values() if end.get("lost")] == [lost]
    usage = (await platform.client.get(f"/v1/tasks/{task_id}/usage")).json()
    assert abs(usage["sandbox_seconds"] - sum(end["seconds"] for end in ends(outcome).values())) < 0.1


async def test_a_full_disk_comes_back_as_a_result_and_loses_nothing(platform: Platform) -> None:
    outcome = await platform.run(
        simple(
            shell("echo early > early"),
            shell("head -c 200M /dev/zero > big"),
            call("write_file", path="late", content="x" * 10_000),
            shell("rm big; echo late > late"),
        ),
        environment={"resources": {"disk_mb": 48}},
        acceptance=["cat early late"],
    )
    assert outcome.task["verified"] is True
    filled, cleared = outcome.results("shell")[1:]
    assert "No space left" in filled["text"]
    assert "The sandbox's disk is full" in filled["text"]
    [written] = outcome.results("write_file")
    assert written["error"] == "file_no_space"
    assert "nothing was written" in written["text"]
    assert cleared["ok"]
    hits = [event["data"] for event in outcome.of("sandbox.limit_hit")]
    assert [(hit["limit"], hit["call_id"]) for hit in hits] == [
        ("disk", filled["call_id"]),
        ("disk", written["call_id"]),
    ]
    # A checkpoint after every step all the same.
    steps = {event["data"]["call_id"].rpartition(":")[0] for event in outcome.of("agent.tool_result")}
    assert len(outcome.of("checkpoint.created")) >= len(steps)


@pytest.mark.slow
async def test_used_up_processes_are_told_and_a_bomb_ends_with_its_command(platform: Platform) -> None:
    outcome = await platform.run(
        simple(shell(":(){ :|:& }; : & sleep 1"), shell("seq 3 | wc -l; set -- /proc/[0-9]*; echo $#")),
        environment={"resources": {"pids": 64}},
    )
    assert outcome.task["state"] == "succeeded"
    bomb, after = outcome.results("shell")
    assert "ran out of processes" in bomb["text"]
    assert bomb["leftovers"] > 1
    assert int(after["text"].split()[1]) < 8
    assert ("pids", bomb["call_id"]) in [
        (event["data"]["limit"], event["data"]["call_id"]) for event in outcome.of("sandbox.limit_hit")
    ]


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A short path: sandboxes have sockets in it."""
    with tempfile.TemporaryDirectory(prefix="jm-sbx-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@asynccontextmanager
async def machine(stack: EmbeddedStack, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another machine's worker: a process with sandboxes of its own."""
    root = directory / "sandboxes"
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "journeyman.platform.cli.main",
            "worker",
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


def on_machine(directory: Path, sandbox_id: str) -> bool:
    return (directory / "sandboxes" / sandbox_id).exists()


@pytest.mark.slow
async def test_two_machines_share_the_work_and_one_may_die(
    platform: Platform, full_stack: EmbeddedStack, elsewhere: Path
) -> None:
    """No sandbox counts as lost while its machine lives; those of a dead one are replaced."""
    steps = [shell(f"echo {number} >> log; sleep 0.3") for number in range(8)]
    wanted = "".join(f"{number}\\n" for number in range(len(steps)))
    acceptance = [f'test "$(cat log)" = "$(printf \'{wanted}\')"']
    async with machine(full_stack, elsewhere) as worker:
        tasks = [await platform.submit(simple(*steps), acceptance=acceptance) for _ in range(3)]
        for outcome in await asyncio.gather(*(platform.end(task_id, 120) for task_id in tasks)):
            assert outcome.task["verified"] is True
            assert outcome.of("sandbox.replaced") == []
        # Now until one is at work on the other machine, which then dies with all its sandboxes.
        for _ in range(20):
            task_id = await platform.submit(simple(*steps), acceptance=["test -s log"])
            await platform.wait_until_call(task_id, "echo 3 ")
            lost = await sandbox_of(platform, task_id)
            if on_machine(elsewhere, lost):
                break
            await platform.client.post(f"/v1/tasks/{task_id}/cancel")
        else:
            pytest.fail("the other machine got no work")
        os.kill(worker.pid, signal.SIGKILL)
        await worker.wait()
        reap(elsewhere / "sandboxes", set())
        outcome = await platform.end(task_id, 60 + DEAD_AFTER.total_seconds())
    assert outcome.task["state"] == "succeeded"
    assert lost in [event["data"]["lost_sandbox_id"] for event in outcome.of("sandbox.replaced")]
    assert ends(outcome)[lost]["lost"] is True
