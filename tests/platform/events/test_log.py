"""The log: gapless whatever happens around it."""

import asyncio
import random

import pytest
import sqlalchemy as sa

from journeyman.platform.events.log import append
from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.tasks.contract import TaskState
from journeyman.platform.tasks.models import Task
from support.rows import make_task


class Undone(Exception):
    pass


async def sequence(database: Database, task_id: str) -> list[int]:
    async with database.transaction() as session:
        return list(await session.scalars(sa.select(Event.seq).where(Event.task_id == task_id).order_by(Event.seq)))


async def test_no_gap_under_concurrent_writers_and_rollbacks(database: Database) -> None:
    task_id = await make_task(database)
    chance = random.Random(7)

    async def write(number: int) -> int:
        count = chance.randint(1, 3)
        undo = chance.random() < 0.3
        try:
            async with database.transaction() as session:
                for position in range(count):
                    await append(session, task_id, EventType.AGENT_MESSAGE, {"writer": number, "position": position})
                    await asyncio.sleep(0)
                if undo:
                    raise Undone
        except Undone:
            return 0
        return count

    written = sum(await asyncio.gather(*(write(number) for number in range(60))))
    found = await sequence(database, task_id)
    assert found == list(range(1, written + 1))
    async with database.transaction() as session:
        assert (await session.get_one(Task, task_id)).last_seq == written


async def test_a_reader_never_sees_an_event_before_the_one_it_follows(database: Database) -> None:
    task_id = await make_task(database)
    done = asyncio.Event()

    async def read() -> int:
        looks = 0
        while not done.is_set():
            found = await sequence(database, task_id)
            assert found == list(range(1, len(found) + 1))
            looks += 1
        return looks

    async def write() -> None:
        for _ in range(15):
            async with database.transaction() as session:
                await append(session, task_id, EventType.AGENT_MESSAGE, {})
                await append(session, task_id, EventType.AGENT_MESSAGE, {})

    reader = asyncio.create_task(read())
    await asyncio.gather(*(write() for _ in range(4)))
    done.set()
    assert await reader > 0
    assert len(await sequence(database, task_id)) == 120


async def test_a_step_writes_its_event_once(database: Database) -> None:
    task_id = await make_task(database)

    async def write() -> str:
        async with database.transaction() as session:
            return (await append(session, task_id, EventType.MODEL_COMPLETED, {}, step_key=f"{task_id}:1")).id

    assert len(set(await asyncio.gather(*(write() for _ in range(10))))) == 1
    assert await sequence(database, task_id) == [1]


async def test_the_log_of_an_ended_task_is_closed(database: Database) -> None:
    task_id = await make_task(database)
    async with database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.CANCELLED)
    with pytest.raises(Conflict):
        async with database.transaction() as session:
            await append(session, task_id, EventType.AGENT_MESSAGE, {})
    assert await sequence(database, task_id) == [1, 2]


async def test_what_a_database_cannot_hold_is_made_visible(database: Database) -> None:
    task_id = await make_task(database)
    data = {"text": "\x1b[31m\x00\ud800", "list": ["\x00"], "\x00key": "x" * 100_000, "deep": {"n": 1.5, "t": True}}
    async with database.transaction() as session:
        await append(session, task_id, EventType.AGENT_TOOL_RESULT, data)
    async with database.transaction() as session:
        event = await session.get_one(Event, (task_id, 1))
    assert event.data["text"].startswith("\x1b[31m\u2400")
    assert event.data["list"] == ["\u2400"]
    assert len(event.data["\u2400key"]) < 20_000
    assert event.data["deep"] == {"n": 1.5, "t": True}


async def test_no_such_task(database: Database) -> None:
    with pytest.raises(NotFound):
        async with database.transaction() as session:
            await append(session, "task_" + "0" * 32, EventType.AGENT_MESSAGE, {})
