"""A worker that dies in the middle of an answer, or with it in its hands before it has stored it: it is paid for once."""

import asyncio

import sqlalchemy as sa

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.ledger.models import LedgerEntry
from support.platform import Platform
from support.scripts import approve, coder, plan, planner, reviewer, shell, work
from support.stack import kill_and_wait


async def entries(database: Database, task_id: str) -> list[LedgerEntry]:
    async with database.transaction() as session:
        query = sa.select(LedgerEntry).where(LedgerEntry.task_id == task_id, LedgerEntry.kind == "model")
        return list(await session.scalars(query.order_by(LedgerEntry.created_at)))


async def test_killed_between_the_answer_and_its_storing(platform: Platform, full_stack: EmbeddedStack) -> None:
    slow = {**shell("echo second >> log"), "delay_ms": 1500}
    threads = [planner(plan()), coder(shell("echo first >> log"), slow, work()), reviewer(approve())]
    database = Database(create_engine(full_stack.settings.database_url))
    try:
        task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(printf \'first\\nsecond\')"'])
        async with asyncio.timeout(60):
            while not any("first" in str(event["data"]) for event in await tool_calls(platform, task_id)):
                await asyncio.sleep(0.02)
            while not [each for each in await entries(database, task_id) if each.state == "reserved"]:
                await asyncio.sleep(0.01)
        async with database.transaction() as session:
            # Nothing can be written to the task's log: the answer arrives and cannot be stored.
            await session.execute(sa.text("SELECT 1 FROM tasks WHERE id = :id FOR UPDATE"), {"id": task_id})
            async with asyncio.timeout(30):
                while [each for each in await entries(database, task_id) if each.state == "reserved"]:
                    await asyncio.sleep(0.02)
            paid = {each.request_id for each in await entries(database, task_id)}
            await asyncio.gather(*(kill_and_wait(full_stack, f"worker-{number}", 60) for number in (1, 2)))
        outcome = await platform.end(task_id, 120)
        assert outcome.task["state"] == "succeeded", outcome.task["failure"]
        after = await entries(database, task_id)
        assert {each.state for each in after} == {"settled"}
        assert paid <= {each.request_id for each in after}
        steps = [each.step_key for each in after]
        assert len(steps) == len(set(steps)), "a step was paid for twice"
        assert [event["data"]["attempt"] for event in outcome.of("model.started") if event["data"]["attempt"] > 1]
        completed = outcome.of("model.completed")
        assert len(completed) == len(steps)
    finally:
        await database.close()


async def test_killed_in_the_middle_of_an_answer(platform: Platform, full_stack: EmbeddedStack) -> None:
    slow = {**shell("echo second >> log"), "delay_ms": 5000}
    threads = [planner(plan()), coder(shell("echo first >> log"), slow, work()), reviewer(approve())]
    database = Database(create_engine(full_stack.settings.database_url))
    try:
        task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(printf \'first\nsecond\')"'])
        async with asyncio.timeout(60):
            while not any("first" in str(event["data"]) for event in await tool_calls(platform, task_id)):
                await asyncio.sleep(0.02)
            while not [each for each in await entries(database, task_id) if each.state == "reserved"]:
                await asyncio.sleep(0.01)
        [running] = [each.request_id for each in await entries(database, task_id) if each.state == "reserved"]
        await asyncio.gather(*(kill_and_wait(full_stack, f"worker-{number}", 60) for number in (1, 2)))
        outcome = await platform.end(task_id, 120)
        assert outcome.task["state"] == "succeeded", outcome.task["failure"]
        after = await entries(database, task_id)
        assert {(each.state, each.estimated) for each in after} == {("settled", False)}
        assert running in {each.request_id for each in after}
        steps = [each.step_key for each in after]
        assert len(steps) == len(set(steps)) == len(outcome.of("model.completed")), "a step was paid for twice"
        assert [event["data"]["attempt"] for event in outcome.of("model.started") if event["data"]["attempt"] > 1]
    finally:
        await database.close()


async def tool_calls(platform: Platform, task_id: str) -> list[dict[str, object]]:
    return [event for event in await platform.events(task_id) if event["type"] == "agent.tool_call"]
