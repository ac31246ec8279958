"""Commands that race with each other and with the end: each is taken once or refused, and the log tells the same story."""

import asyncio
import random
import uuid
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.outbox.models import OutboxEntry
from support.holding import frozen
from support.oracle import check_verified, ledger_of
from support.platform import Platform
from support.scripts import shell, simple
from support.stack import kill_and_wait, part_of

LINES = 10
ACCEPTANCE = [f'test "$(cat log)" = "$(seq 0 {LINES - 1})"']


def steps() -> list[dict[str, object]]:
    return simple(*({**shell(f"sleep 0.2; echo {number} >> log"), "delay_ms": 100} for number in range(LINES)))


async def post(platform: Platform, task_id: str, action: str) -> int:
    return (await platform.client.post(f"/v1/tasks/{task_id}/{action}")).status_code


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.slow
async def test_pauses_and_resumes_race(platform: Platform, full_stack: EmbeddedStack, seed: int) -> None:
    chance = random.Random(seed)
    task_id = await platform.submit(steps(), acceptance=ACCEPTANCE)
    await platform.wait_until_event(task_id, "agent.tool_result")
    for _ in range(4):
        actions = [chance.choice(["pause", "resume"]) for _ in range(8)]
        codes = await asyncio.gather(*(post(platform, task_id, action) for action in actions))
        assert set(codes) <= {200, 409}
    await post(platform, task_id, "resume")
    await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    turns = [event["type"] for event in outcome.of("task.paused", "task.resumed")]
    assert turns == ["task.paused", "task.resumed"] * (len(turns) // 2)


async def test_pauses_and_resumes_that_workers_hear_of_all_at_once(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    """The task's workflow tells its subtasks of each, and Temporal does not keep such signals in order."""
    thinking = {**shell("true"), "delay_ms": 3000}
    task_id = await platform.submit(simple(thinking, shell("echo 1 >> log")), acceptance=["grep -qx 1 log"])
    async with asyncio.timeout(60):
        # Frozen while they wait for the model: neither holds a lock in the database.
        while not [event for event in await platform.events(task_id) if said_by_coder(event, "model.started")]:
            await asyncio.sleep(0.05)
    async with AsyncExitStack() as standing:
        for name in ("worker-1", "worker-2"):
            pid = part_of(full_stack, name).pid
            assert pid is not None
            await standing.enter_async_context(frozen(pid))
        for action in ("pause", "resume") * 8:
            assert await post(platform, task_id, action) == 200
        await told_to_temporal(full_stack, task_id)
    await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    turns = [event["type"] for event in outcome.of("task.paused", "task.resumed")]
    assert turns == ["task.paused", "task.resumed"] * 8


def said_by_coder(event: dict[str, Any], type_: str) -> bool:
    return event["type"] == type_ and event["data"].get("role") == "coder"


async def told_to_temporal(stack: EmbeddedStack, task_id: str) -> None:
    """Return once every signal of the task has been delivered."""
    database = Database(create_engine(stack.settings.database_url))
    waiting = sa.select(sa.func.count()).where(OutboxEntry.task_id == task_id, OutboxEntry.delivered_at.is_(None))
    try:
        async with asyncio.timeout(30):
            while True:
                async with database.transaction() as session:
                    if not await session.scalar(waiting):
                        return
                await asyncio.sleep(0.05)
    finally:
        await database.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
async def test_cancels_race_with_pauses_and_resumes(platform: Platform, full_stack: EmbeddedStack, seed: int) -> None:
    chance = random.Random(seed)
    task_id = await platform.submit(steps())
    await platform.wait_until_event(task_id, "agent.tool_result")
    actions = ["cancel"] * 4 + [chance.choice(["pause", "resume"]) for _ in range(8)]
    chance.shuffle(actions)
    codes = await asyncio.gather(*(post(platform, task_id, action) for action in actions))
    assert set(codes) <= {200, 409}
    assert all(code == 200 for code, action in zip(codes, actions, strict=True) if action == "cancel")
    outcome = await platform.end(task_id, 120)
    assert outcome.task["state"] == "cancelled"
    assert outcome.types.count("task.cancelled") == 1
    ended = len(outcome.events)
    for action in ("pause", "resume"):
        assert await post(platform, task_id, action) == 409
    assert len(await platform.events(task_id)) == ended


@pytest.mark.parametrize(
    "name", ["worker-1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("api", "temporal"))]
)
async def test_an_acknowledged_cancel_survives_a_kill(platform: Platform, full_stack: EmbeddedStack, name: str) -> None:
    task_id = await platform.submit(simple({**shell("sleep 60"), "delay_ms": 200}))
    await platform.wait_until_event(task_id, "agent.tool_call")
    assert await post(platform, task_id, "cancel") == 200
    await kill_and_wait(full_stack, name, 60)
    outcome = await platform.end(task_id, 120)
    assert outcome.task["state"] == "cancelled"
    assert outcome.types.count("task.cancelled") == 1


async def test_a_submission_sent_again_because_the_api_died_makes_one_task(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    instruction = platform.register(simple(shell("echo 1 >> log")))
    body = {"instruction": instruction, "workspace": {"source": "none"}, "acceptance": ["grep -qx 1 log"]}
    key = {"Idempotency-Key": uuid.uuid4().hex}

    async def submit() -> str | None:
        try:
            response = await platform.client.post("/v1/tasks", json=body, headers=key)
        except httpx.TransportError:
            return None
        return str(response.json()["id"]) if response.status_code == 201 else None

    killing = asyncio.create_task(kill_and_wait(full_stack, "api", 60))
    sent = [await submit() for _ in range(10)]
    await killing
    sent += [await submit() for _ in range(3)]
    made = {task_id for task_id in sent if task_id is not None}
    assert len(made) == 1
    platform.submitted.extend(made)
    await check_verified(full_stack, await platform.end(made.pop(), 120))


async def test_a_cancelled_task_has_a_closed_ledger(platform: Platform, full_stack: EmbeddedStack) -> None:
    task_id = await platform.submit(simple({**shell("echo 1"), "delay_ms": 20_000}))
    async with asyncio.timeout(60):
        while sum(event["type"] == "model.started" for event in await platform.events(task_id)) < 2:
            await asyncio.sleep(0.05)
    await post(platform, task_id, "cancel")
    outcome = await platform.end(task_id, 60)
    assert outcome.task["state"] == "cancelled"
    rows = [row for row in await ledger_of(full_stack, task_id) if row.kind == "model"]
    # The Planner's answer is paid. The Coder's was cut off: estimated, or said to be unknown.
    assert len([row for row in rows if row.state == "settled" and not row.estimated]) == 1
    assert len(rows) == 2
