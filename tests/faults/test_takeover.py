"""A worker dies, stops or freezes at the worst moments; another goes on where it was.

The worker is the one that holds the running call, as Temporal names it. A moment between a side effect and the note of its
completion is made by a lock: the task's row is held, the worker waits to write its log, and is killed while it waits.
"""

import asyncio
import os
import signal

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.names import subtask_workflow_id
from support.holding import command_running, frozen, holder, log_held, reserved, waiting_for_log
from support.oracle import check_verified
from support.platform import Outcome, Platform
from support.scripts import approve, call, coder, plan, planner, reviewer, shell, simple, work
from support.stack import part_of


async def in_subtask(platform: Platform, task_id: str, type_: str) -> str:
    """The workflow of the one subtask, once its Coder has come to an event of that type."""
    await wait_until(platform, task_id, type_, "coder")
    return subtask_workflow_id(task_id, "s1", 1)


async def wait_until(platform: Platform, task_id: str, type_: str, role: str, count: int = 1) -> None:
    async with asyncio.timeout(60):
        while True:
            events = await platform.events(task_id)
            if sum(event["type"] == type_ and event["data"].get("role") == role for event in events) >= count:
                return
            await asyncio.sleep(0.05)


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def back(stack: EmbeddedStack, name: str, before: int) -> None:
    """Wait until the supervisor has another in its place, so that the next test finds all as it was."""
    part = part_of(stack, name)
    async with asyncio.timeout(60):
        while part.pid in {None, before} or part.status != "ready":
            await asyncio.sleep(0.05)


def answers_paid(outcome: Outcome) -> int:
    return len(outcome.of("model.completed"))


async def test_killed_in_the_middle_of_a_model_call(platform: Platform, full_stack: EmbeddedStack) -> None:
    slow = {**shell("echo once >> log"), "delay_ms": 4000}
    task_id = await platform.submit(simple(slow), acceptance=['test "$(cat log)" = once'])
    worker = await holder(full_stack, await in_subtask(platform, task_id, "model.started"), "run_step")
    victim = worker.pid
    kill(victim)
    log = await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    assert log.recovery["model.started again"] == 1
    assert answers_paid(outcome) == 4
    await back(full_stack, worker.name, victim or 0)


async def test_killed_in_the_middle_of_a_command_which_goes_on_and_is_found_again(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    threads = simple(shell("echo begun >> log; sleep 5.0417; echo done >> log; echo said"))
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(printf "begun\\ndone")"'])
    worker = await holder(full_stack, await in_subtask(platform, task_id, "agent.tool_call"), "run_step")
    await command_running("5.0417")
    victim = worker.pid
    kill(victim)
    log = await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    assert log.recovery["reattached"] == 1
    assert outcome.results("shell")[0]["text"].startswith("said\n")
    await back(full_stack, worker.name, victim or 0)


@pytest.mark.parametrize("tool", ["shell", "edit_file", "write_file"])
@pytest.mark.slow
async def test_killed_between_a_side_effect_and_its_completion(
    platform: Platform, full_stack: EmbeddedStack, tool: str
) -> None:
    effects = {
        "shell": shell("echo x >> f"),
        # Not idempotent by itself: what it writes contains what it looks for.
        "edit_file": call("edit_file", path="f", old="x", new="x\nx"),
        "write_file": call("write_file", path="f", content="x\nx\n"),
    }
    threads = simple(
        shell("echo x > f; sleep 0.1"), {**effects[tool], "delay_ms": 2500}, {**shell("cat f"), "delay_ms": 100}
    )
    task_id = await platform.submit(threads, acceptance=['test "$(cat f)" = "$(printf "x\\nx")"'])
    workflow = subtask_workflow_id(task_id, "s1", 1)
    # The plan's own call is the first, then the Coder's.
    async with log_held(full_stack, task_id, after="agent.tool_call", count=3):
        worker = await holder(full_stack, workflow, "run_step")
        await waiting_for_log(full_stack)
        victim = worker.pid
        kill(victim)
    await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    assert [result["ok"] for result in outcome.results(tool)] == [True] * (3 if tool == "shell" else 1)
    if tool == "edit_file":
        # As the attempt that died would have said it.
        assert outcome.results(tool)[0]["text"] == "Edited f in 1 place."
    await back(full_stack, worker.name, victim or 0)


async def test_an_answer_that_was_paid_and_not_yet_stored_is_not_paid_again(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    slow = {**shell("echo once >> log"), "delay_ms": 2500}
    task_id = await platform.submit(simple(slow), acceptance=['test "$(cat log)" = once'])
    workflow = await in_subtask(platform, task_id, "model.started")
    worker = await holder(full_stack, workflow, "run_step")
    await reserved(full_stack, task_id)
    async with log_held(full_stack, task_id, after="model.started", count=2):
        await waiting_for_log(full_stack)
        victim = worker.pid
        kill(victim)
    await check_verified(full_stack, await platform.end(task_id, 120))
    await back(full_stack, worker.name, victim or 0)


async def test_told_to_stop_it_finishes_what_it_does(platform: Platform, full_stack: EmbeddedStack) -> None:
    slow = {**shell("sleep 2; echo once >> log"), "delay_ms": 3000}
    task_id = await platform.submit(simple(slow), acceptance=['test "$(cat log)" = once'])
    worker = await holder(full_stack, await in_subtask(platform, task_id, "model.started"), "run_step")
    victim = worker.pid
    assert victim is not None
    os.kill(victim, signal.SIGTERM)
    log = await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    # Drained: no call was begun twice, and nobody saw a failure.
    assert log.recovery["model.started again"] == 0
    assert outcome.of("model.failed", "task.paused") == []
    await back(full_stack, worker.name, victim)


@pytest.mark.slow
async def test_told_to_stop_it_hands_over_what_takes_too_long(platform: Platform, full_stack: EmbeddedStack) -> None:
    threads = [
        planner(plan()),
        coder({**shell("echo once >> log"), "delay_ms": 26_000}, shell("sleep 26; echo twice >> log"), work()),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(printf "once\\ntwice")"'])
    workflow = await in_subtask(platform, task_id, "model.started")
    for type_, count in (("model.started", 1), ("agent.tool_call", 2)):
        await wait_until(platform, task_id, type_, "coder", count)
        worker = await holder(full_stack, workflow, "run_step")
        victim = worker.pid
        assert victim is not None
        os.kill(victim, signal.SIGTERM)
        await back(full_stack, worker.name, victim)
    await check_verified(full_stack, outcome := await platform.end(task_id, 170))
    assert outcome.of("model.failed", "task.paused", "sandbox.replaced") == []


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)])
async def test_a_worker_that_wakes_up_late_changes_nothing(
    platform: Platform, full_stack: EmbeddedStack, seconds: int
) -> None:
    slow = {**shell("echo once >> log"), "delay_ms": 1500}
    threads = simple(slow, shell("sleep 1; echo twice >> log"))
    task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(printf "once\\ntwice")"'])
    worker = await holder(full_stack, await in_subtask(platform, task_id, "model.started"), "run_step")
    assert worker.pid is not None
    async with frozen(worker.pid):
        outcome = await platform.end(task_id, 120)
        await asyncio.sleep(max(0, seconds - 6))
    ended = len(outcome.events)
    # It is awake now, with an answer in its hands that nobody waits for.
    await platform.wait_until_still(task_id)
    assert len(await platform.events(task_id)) == ended
    await check_verified(full_stack, outcome)
