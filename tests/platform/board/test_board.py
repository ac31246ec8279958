"""Notes on a task's blackboard: once per step, numbered, open until closed, and gone with a rewind."""

import asyncio
import uuid
from typing import Any

import pytest

from journeyman.platform.board import service
from journeyman.platform.board.models import Note
from journeyman.platform.board.service import Author, Kind
from journeyman.platform.branching import rewinds
from journeyman.platform.branching.schemas import RewindTask
from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict, InvalidInput
from journeyman.platform.kit.ids import new_id
from journeyman.platform.plans import repository as plans
from journeyman.platform.tasks.models import Task
from support.api import Caller, RunningApi
from support.rows import make_task, make_thread


async def post(
    database: Database,
    task_id: str,
    text: str = "A note.",
    kind: Kind = "note",
    *,
    key: str | None = None,
    closes: int | None = None,
) -> Note:
    async with database.transaction() as session:
        author = Author(task_id, "coder", key or uuid.uuid4().hex, new_id("thread"), "s1")
        return await service.post(session, author, kind, text, closes)


async def board(caller: Caller, task_id: str, **query: Any) -> dict[str, Any]:
    response = await caller.get(f"/v1/tasks/{task_id}/board", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.fixture
async def task_id(caller: Caller, database: Database) -> str:
    return await make_task(database, caller.project_id)


async def test_a_note_and_its_event(caller: Caller, database: Database, task_id: str) -> None:
    note = await post(database, task_id, "Dates are ISO 8601.", "decision")
    (shown,) = (await board(caller, task_id))["data"]
    assert (shown["number"], shown["kind"], shown["text"], shown["role"]) == (
        1,
        "decision",
        "Dates are ISO 8601.",
        "coder",
    )
    (event,) = (await caller.get(f"/v1/tasks/{task_id}/events")).json()["data"]
    assert event["type"] == "note.written"
    assert event["data"] == {
        "number": 1, "kind": "decision", "text": "Dates are ISO 8601.", "closes": None, "role": "coder",
    }  # fmt: skip
    assert (shown["event_seq"], event["thread_id"]) == (event["seq"], note.thread_id)


async def test_the_same_step_writes_once(caller: Caller, database: Database, task_id: str) -> None:
    key = uuid.uuid4().hex
    first, again = [await post(database, task_id, key=key) for _ in range(2)]
    assert first.id == again.id
    assert len((await board(caller, task_id))["data"]) == 1


async def test_numbers_have_no_gap_however_many_write_at_once(caller: Caller, database: Database, task_id: str) -> None:
    await asyncio.gather(*(post(database, task_id) for _ in range(12)))
    assert [note["number"] for note in (await board(caller, task_id))["data"]] == list(range(12, 0, -1))


async def test_a_promise_is_open_until_a_note_closes_it(caller: Caller, database: Database, task_id: str) -> None:
    for text in ("I will write the manual.", "I will add tests."):
        await post(database, task_id, text, "promise")
    assert [note["number"] for note in (await board(caller, task_id, open=True))["data"]] == [2, 1]
    await post(database, task_id, "The manual is written.", closes=1)
    found = await board(caller, task_id)
    assert [(note["closes"], note["closed_by"]) for note in found["data"]] == [(1, None), (None, None), (None, 3)]
    assert [note["number"] for note in (await board(caller, task_id, open=True))["data"]] == [2]


@pytest.mark.parametrize(("closes", "said"), [(9, "no note 9"), (1, "is a decision"), (2, "closed by note 3 already")])
async def test_what_cannot_be_closed_is_refused(
    caller: Caller, database: Database, task_id: str, closes: int, said: str
) -> None:
    await post(database, task_id, "So be it.", "decision")
    await post(database, task_id, "I will.", "promise")
    await post(database, task_id, "I did.", closes=2)
    with pytest.raises(InvalidInput, match=said):
        await post(database, task_id, "Closing.", closes=closes)
    assert len((await board(caller, task_id))["data"]) == 3
    assert len((await caller.get(f"/v1/tasks/{task_id}/events")).json()["data"]) == 3


async def test_pages_and_kinds(caller: Caller, database: Database, task_id: str) -> None:
    kinds: list[Kind] = ["note", "decision", "finding", "decision", "note"]
    for kind in kinds:
        await post(database, task_id, kind=kind)
    seen: list[int] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await board(caller, task_id, **query)
        seen += [note["number"] for note in page["data"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
        await post(database, task_id, "late")
    assert seen == [5, 4, 3, 2, 1]
    found = await board(caller, task_id, kind=["decision", "finding"])
    assert [note["number"] for note in found["data"]] == [4, 3, 2]


async def test_how_far_the_plan_is(caller: Caller, database: Database, task_id: str) -> None:
    assert (await board(caller, task_id))["plan"] is None
    subtasks = [
        {"id": id_, "title": id_.upper(), "instructions": "", "depends_on": needs, "acceptance": []}
        for id_, needs in (("s1", []), ("s2", ["s1"]))
    ]
    async with database.transaction() as session:
        await plans.add_revision(
            session,
            project_id=caller.project_id,
            task_id=task_id,
            revision=1,
            subtasks=subtasks,
            acceptance=[],
            reason=None,
        )
        (await session.get_one(Task, task_id)).plan_revision = 1
        (await plans.get_subtask(session, task_id, 1, "s1")).state = "completed"
    assert (await board(caller, task_id))["plan"] == {
        "revision": 1,
        "subtasks": [
            {"id": "s1", "title": "S1", "depends_on": [], "state": "completed"},
            {"id": "s2", "title": "S2", "depends_on": ["s1"], "state": "pending"},
        ],
    }


async def test_a_rewind_takes_later_notes_off_and_keeps_the_numbers(
    caller: Caller, database: Database, task_id: str
) -> None:
    await post(database, task_id, "I will.", "promise")
    thread_id = await make_thread(database, task_id)
    async with database.transaction() as session:
        point = checkpoints.Point(
            project_id=caller.project_id,
            task_id=task_id,
            thread_id=thread_id,
            subtask_id="s1",
            plan_revision=0,
            snapshot="none",
            step_key=f"{thread_id}:0",
        )
        checkpoint_id = await checkpoints.create(session, point)
    await post(database, task_id, "I did.", closes=1)
    await post(database, task_id, "Something that never was.", "decision")
    async with database.transaction() as session:
        wanted = RewindTask(checkpoint_id=checkpoint_id)
        asked = await rewinds.request(session, caller.project_id, task_id, wanted, author="key_x", key=None)
        await rewinds.apply(session, task_id, asked.rewind.id)
    (left,) = (await board(caller, task_id))["data"]
    assert (left["number"], left["closed_by"]) == (1, None), "what closed it is history"
    with pytest.raises(InvalidInput, match="no note 3"):
        await post(database, task_id, "Closing.", closes=3)
    assert (await post(database, task_id, "I did it now.", closes=1)).seq == 4
    assert [note["number"] for note in (await board(caller, task_id))["data"]] == [4, 1]


async def test_a_task_that_has_ended_takes_no_notes(database: Database, task_id: str) -> None:
    async with database.transaction() as session:
        (await session.get_one(Task, task_id)).finished_at = now()
    with pytest.raises(Conflict):
        await post(database, task_id)


async def test_another_projects_board_is_a_404(api: RunningApi, database: Database, task_id: str) -> None:
    await post(database, task_id)
    async with api.caller() as stranger:
        assert (await stranger.get(f"/v1/tasks/{task_id}/board")).status_code == 404


async def test_what_cannot_be_meant_is_refused(caller: Caller, task_id: str) -> None:
    for query in ({"kind": "rumour"}, {"limit": 0}, {"cursor": "x"}, {"colour": "red"}):
        assert (await caller.get(f"/v1/tasks/{task_id}/board", params=query)).status_code == 422
