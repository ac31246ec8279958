"""Stores that are away or stand still for a while: steps wait for them, and none is half written."""

import asyncio
import os
import signal

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from support.holding import frozen
from support.oracle import check_verified
from support.platform import Platform
from support.scripts import shell, simple
from support.stack import kill_and_wait, part_of

LINES = 10
ACCEPTANCE = [f'test "$(cat log)" = "$(seq 0 {LINES - 1})"']


def steps() -> list[dict[str, object]]:
    return simple(*({**shell(f"sleep 0.2; echo {number} >> log"), "delay_ms": 100} for number in range(LINES)))


@pytest.mark.parametrize(
    "name",
    [
        "objects",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("temporal", "postgres", "vectors", "gateway")),
    ],
)
async def test_one_stands_still_for_a_while(platform: Platform, full_stack: EmbeddedStack, name: str) -> None:
    task_id = await platform.submit(steps(), acceptance=ACCEPTANCE)
    await platform.wait_until_event(task_id, "agent.tool_result")
    pid = part_of(full_stack, name).pid
    assert pid is not None
    async with frozen(pid):
        # Longer than any heartbeat: whoever works meanwhile counts as dead.
        await asyncio.sleep(5)
    await check_verified(full_stack, await platform.end(task_id, 150))


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_object_store_is_away_for_a_minute(platform: Platform, full_stack: EmbeddedStack) -> None:
    task_id = await platform.submit(steps(), acceptance=ACCEPTANCE)
    await platform.wait_until_event(task_id, "agent.tool_result")
    pid = part_of(full_stack, "objects").pid
    assert pid is not None
    async with frozen(pid):
        await asyncio.sleep(60)
        assert (await platform.task(task_id))["state"] == "running"
    await check_verified(full_stack, await platform.end(task_id, 150))


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_all_stores_die_at_once_and_again(platform: Platform, full_stack: EmbeddedStack) -> None:
    task_id = await platform.submit(steps(), acceptance=ACCEPTANCE)
    await platform.wait_until_event(task_id, "agent.tool_result")
    for _ in range(2):
        victims = [part_of(full_stack, name) for name in ("postgres", "temporal", "objects", "vectors")]
        pids = [part.pid for part in victims]
        for pid in pids:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(90):
            while any(
                part.pid in {None, pid} or part.status != "ready" for part, pid in zip(victims, pids, strict=True)
            ):
                await asyncio.sleep(0.1)
    await check_verified(full_stack, await platform.end(task_id, 150))


async def test_the_gateway_dies_in_the_middle_of_an_answer(platform: Platform, full_stack: EmbeddedStack) -> None:
    slow = {**shell("echo once >> log"), "text": "A long answer. " * 30, "delta_ms": 100, "delay_ms": 500}
    task_id = await platform.submit(simple(slow), acceptance=['test "$(cat log)" = once'])
    async with asyncio.timeout(60):
        while sum(event["type"] == "model.started" for event in await platform.events(task_id)) < 2:
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    await kill_and_wait(full_stack, "gateway", 60)
    log = await check_verified(full_stack, await platform.end(task_id, 120))
    assert log.recovery["model.failed"] >= 1
