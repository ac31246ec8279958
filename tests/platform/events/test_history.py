"""History, page by page."""

import pytest

from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from support.api import Caller, fields_of
from support.rows import make_task


async def write(database: Database, task_id: str, count: int) -> None:
    async with database.transaction() as session:
        for number in range(count):
            type_ = EventType.AGENT_TOOL_CALL if number % 2 else EventType.AGENT_MESSAGE
            await append(session, task_id, type_, {"n": number}, thread_id="thr_x", subtask_id="s1")


async def test_pages(caller: Caller, database: Database) -> None:
    task_id = await make_task(database, caller.project_id)
    await write(database, task_id, 45)
    first = (await caller.get(f"/v1/tasks/{task_id}/events")).json()
    assert [event["seq"] for event in first["data"]] == list(range(1, 21))
    assert (first["next_after"], first["has_more"]) == (20, True)
    event = first["data"][0]
    assert set(event) == {"id", "seq", "task_id", "type", "time", "thread_id", "subtask_id", "data"}
    assert (event["task_id"], event["thread_id"], event["subtask_id"], event["data"]) == (
        task_id,
        "thr_x",
        "s1",
        {"n": 0},
    )
    last = (await caller.get(f"/v1/tasks/{task_id}/events?after=40&limit=5")).json()
    assert [event["seq"] for event in last["data"]] == [41, 42, 43, 44, 45]
    assert last["has_more"] is False
    none = (await caller.get(f"/v1/tasks/{task_id}/events?after=45")).json()
    assert none == {"data": [], "next_after": 45, "has_more": False}


async def test_types(caller: Caller, database: Database) -> None:
    task_id = await make_task(database, caller.project_id)
    await write(database, task_id, 10)
    page = (await caller.get(f"/v1/tasks/{task_id}/events?types=agent.tool_call&limit=2")).json()
    assert [event["seq"] for event in page["data"]] == [2, 4]
    assert (page["next_after"], page["has_more"]) == (4, True)
    both = (await caller.get(f"/v1/tasks/{task_id}/events?types=agent.tool_call,agent.message&limit=100")).json()
    assert len(both["data"]) == 10


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("after=-1", "after"),
        ("after=x", "after"),
        ("after=99999999999999999999999", "after"),
        ("types=nope", "types"),
        ("limit=1000", "limit"),
        ("since=1", "since"),
    ],
)
async def test_bad_queries(caller: Caller, database: Database, query: str, field: str) -> None:
    task_id = await make_task(database, caller.project_id)
    assert fields_of(await caller.get(f"/v1/tasks/{task_id}/events?{query}")) == {field}
