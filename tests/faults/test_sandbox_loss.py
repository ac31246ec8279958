"""Sandboxes die at any moment, or fill up: the agent is told, and the work goes on from the newest snapshot."""

import asyncio

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.sandboxes.registry import Record
from support.holding import command_running
from support.oracle import check_verified
from support.platform import Platform
from support.scripts import approve, call, coder, plan, planner, reviewer, shell, simple, work


async def lease_of(platform: Platform, task_id: str, role: str) -> str:
    """The sandbox of the role's thread, once it has one."""
    async with asyncio.timeout(60):
        while True:
            events = await platform.events(task_id)
            threads = {e["thread_id"] for e in events if e["data"].get("role") == role}
            found = [
                e["data"]["sandbox_id"]
                for e in events
                if e["type"] in {"sandbox.leased", "sandbox.replaced"}
                and (e["thread_id"] in threads or e["data"]["purpose"].startswith(role))
            ]
            if found:
                return str(found[-1])
            await asyncio.sleep(0.05)


def end_sandbox(stack: EmbeddedStack, sandbox_id: str) -> None:
    """Kill its process 1, and so all that runs in it."""
    record = Record.load(stack.settings.sandbox_dir / sandbox_id)
    assert record is not None
    record.end()


async def test_killed_under_a_command(platform: Platform, full_stack: EmbeddedStack) -> None:
    threads = simple(shell("echo 1 >> log"), shell("echo 2 >> log; sleep 3.0519"), shell("echo 3 >> log"))
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(seq 3)"'])
    await command_running("3.0519")
    end_sandbox(full_stack, await lease_of(platform, task_id, "coder"))
    log = await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    assert log.recovery["void step"] == 1
    replaced = outcome.of("sandbox.replaced")
    assert len(replaced) == 1
    assert replaced[0]["data"]["lost_sandbox_id"]
    assert any("may have run" in result["text"] for result in outcome.results("shell"))


@pytest.mark.slow
async def test_killed_between_two_steps(platform: Platform, full_stack: EmbeddedStack) -> None:
    threads = simple(
        shell("echo 1 >> log; touch /tmp/gone"),
        {**shell("cat log; ls /tmp/gone"), "delay_ms": 4000},
        shell("echo 2 >> log"),
    )
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(seq 2)"'])
    async with asyncio.timeout(60):
        while sum(e["type"] == "checkpoint.created" for e in await platform.events(task_id)) < 3:
            await asyncio.sleep(0.05)
    end_sandbox(full_stack, await lease_of(platform, task_id, "coder"))
    log = await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    # Nothing was lost but /tmp, and the agent was told.
    assert log.recovery["void step"] == 0
    assert log.recovery["told of a replaced sandbox"] == 1
    told = outcome.results("shell")[1]
    assert "lost and replaced" in told["text"]
    assert told["exit_code"] != 0


async def test_killed_in_a_step_of_several_calls_which_is_not_half_carried_on(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    calls = [
        call("write_file", path="f", content="x\n"),
        shell("echo 1 >> log"),
        shell("echo 2 >> log; sleep 3.0625"),
        shell("echo 3 >> log"),
    ]
    batch = {"tool_calls": [each["tool_calls"][0] for each in calls]}
    task_id = await platform.submit(simple(shell("mkdir d"), batch), acceptance=['test "$(cat log)" = "$(seq 3)"'])
    await command_running("3.0625")
    end_sandbox(full_stack, await lease_of(platform, task_id, "coder"))
    log = await check_verified(full_stack, await platform.end(task_id, 120))
    assert log.recovery["void step"] == 1


@pytest.mark.slow
async def test_the_reviewers_is_killed(platform: Platform, full_stack: EmbeddedStack) -> None:
    threads = [
        planner(plan()),
        coder(shell("echo 1 > log"), work()),
        reviewer(shell("cat log; sleep 3.0731"), approve()),
    ]
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = 1'])
    await command_running("3.0731")
    end_sandbox(full_stack, await lease_of(platform, task_id, "reviewer"))
    log = await check_verified(full_stack, await platform.end(task_id, 120))
    assert log.recovery["void step"] == 1


@pytest.mark.parametrize("where", ["acceptance", pytest.param("setup", marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_killed_under_a_command_of_the_platform(
    platform: Platform, full_stack: EmbeddedStack, where: str
) -> None:
    mark = {"setup": "3.0843", "acceptance": "3.0957"}[where]
    fields = {
        "setup": {"environment": {"setup": [f"sleep {mark}"]}, "acceptance": ["grep -qx 1 log"]},
        "acceptance": {"acceptance": [f"sleep {mark}; grep -qx 1 log"]},
    }
    task_id = await platform.submit(simple(shell("echo 1 >> log")), **fields[where])
    await command_running(mark)
    purpose = {"setup": "prepare", "acceptance": "verify"}[where]
    end_sandbox(full_stack, await lease_of(platform, task_id, purpose))
    await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    assert len(outcome.of("sandbox.replaced")) == 1


@pytest.mark.slow
async def test_a_full_disk_is_said_and_can_be_cleared(platform: Platform, full_stack: EmbeddedStack) -> None:
    threads = simple(
        shell("echo 1 >> log"),
        shell("head -c 200000000 /dev/zero > big"),
        call("write_file", path="more", content="y" * 200_000),
        shell("rm -f big; echo 2 >> log"),
    )
    task_id = await platform.submit(
        threads,
        environment={"resources": {"disk_mb": 64}},
        acceptance=['test "$(cat log)" = "$(seq 2)" && test ! -e big'],
    )
    await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    filled = outcome.results("shell")[1]
    assert filled["ok"] is False
    assert "space" in filled["text"].lower() or "quota" in filled["text"].lower()
