"""Rewinds asked for over REST, and what the preview says of them beforehand."""

import io
import tarfile
from typing import Any

import sqlalchemy as sa

from journeyman.platform.branching import rewinds
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.models import Event
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.tasks.contract import TaskState
from journeyman.platform.tasks.models import Task
from support.api import Caller, RunningApi, fields_of
from support.story import Story


def tree(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


async def at_work(api: RunningApi, caller: Caller, database: Database) -> tuple[Story, list[str]]:
    """A Coder at work, with real snapshots; its checkpoints."""
    store = api.resources[SnapshotStore]
    digests = [
        (await store.from_archive(caller.project_id, tree(files))).digest
        for files in (
            {"a": "1", "b": "1"},
            {"a": "2", "b": "1"},
            {"a": "3", "c": "1", "sub/d": "1"},
        )
    ]
    story = await Story.begin(database, caller.project_id, initial_snapshot=digests[0], head_snapshot=digests[0])
    await story.plan(await story.open("planner"), "s1", "s2")
    coder = await story.open("coder", "s1")
    return story, [await story.step(coder, snapshot=digest) for digest in digests[1:]]


async def preview(caller: Caller, story: Story, checkpoint_id: str) -> dict[str, Any]:
    response = await caller.get(f"/v1/tasks/{story.task_id}/checkpoints/{checkpoint_id}/preview")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_what_a_rewind_would_change(api: RunningApi, caller: Caller, database: Database) -> None:
    story, (first, second) = await at_work(api, caller, database)
    coder = story.thread("coder", "s1")
    await story.person("Mind the tests.", delivered_to=coder)
    await story.work(coder, snapshot=(await story.checkpoint(second)).snapshot)
    await story.step(await story.open("reviewer", "s1"))
    before = await story.task()
    found = await preview(caller, story, first)
    after = await story.task()
    assert (after.last_seq, after.updated_at) == (before.last_seq, before.updated_at)
    assert (found["phase"], found["can_rewind"], found["epoch"]) == ("work", True, 0)
    assert (found["state_now"], found["state_then"]) == ("running", "running")
    assert (found["plan_revision_now"], found["plan_revision_then"]) == (1, 1)
    assert found["events_set_aside"] == before.last_seq - found["event_seq"]
    assert [(one["id"], one["now"], one["then"]) for one in found["subtasks"]] == [
        ("s1", "running", "running"),
        ("s2", "pending", "pending"),
    ]
    assert {
        (one["role"], one["effect"], one["messages_kept"], one["messages_set_aside"]) for one in found["threads"]
    } == {
        ("planner", "kept", 4, 0),
        ("coder", "goes_on", 4, 5),
        ("reviewer", "set_aside", 0, 4),
    }
    assert found["messages_set_aside"] == [{"number": 1, "text": "Mind the tests."}]
    assert (found["spent"]["steps"], found["spent"]["tokens"], float(found["spent"]["cost_usd"])) == (5, 500, 2.5)
    assert (found["inherited_by_fork"]["steps"], found["inherited_by_fork"]["tokens"]) == (2, 200)


async def test_the_files_that_would_change(api: RunningApi, caller: Caller, database: Database) -> None:
    story, (first, second) = await at_work(api, caller, database)
    (files,) = (await preview(caller, story, first))["files"]
    assert files["subtask_id"] == "s1"
    assert [(one["path"], one["kind"]) for one in files["data"]] == [
        ("a", "modified"),
        ("b", "added"),
        ("c", "deleted"),
        ("sub/d", "deleted"),
    ]
    assert (files["added"], files["modified"], files["deleted"], files["truncated"]) == (1, 1, 2, False)
    assert (await preview(caller, story, second))["files"] == []


async def test_files_when_the_work_is_in_the_head_already(api: RunningApi, caller: Caller, database: Database) -> None:
    story, (first, _) = await at_work(api, caller, database)
    await story.end("s1")
    files = {one["subtask_id"]: one for one in (await preview(caller, story, first))["files"]}
    assert set(files) == {None, "s1"}
    assert [one["path"] for one in files[None]["data"]] == ["a", "b", "c", "sub/d"]
    assert (files["s1"]["added"], files["s1"]["deleted"]) == (1, 2)


async def test_back_to_before_the_plan(api: RunningApi, caller: Caller, database: Database) -> None:
    story = await Story.begin(database, caller.project_id)
    planner = await story.open("planner")
    exploring = await story.step(planner)
    await story.plan(planner, "s1")
    await story.open("coder", "s1")
    found = await preview(caller, story, exploring)
    assert (found["phase"], found["state_then"], found["plan_revision_then"]) == ("plan", "planning", 0)
    assert [(one["id"], one["now"], one["then"]) for one in found["subtasks"]] == [("s1", "running", None)]
    assert {one["role"]: one["effect"] for one in found["threads"]} == {"planner": "goes_on", "coder": "set_aside"}


async def test_after_a_rewind_it_compares_with_what_is_in_force(
    api: RunningApi, caller: Caller, database: Database
) -> None:
    story, (first, second) = await at_work(api, caller, database)
    async with database.transaction() as session:
        body = rewinds.RewindTask(checkpoint_id=first)
        asked = await rewinds.request(session, caller.project_id, story.task_id, body, author="k", key=None)
    async with database.transaction() as session:
        story.goes_on(await rewinds.apply(session, story.task_id, asked.rewind.id))
    found = await preview(caller, story, second)
    (coder,) = [one for one in found["threads"] if one["role"] == "coder"]
    # Four messages are the same in both; the note of the rewind is set aside.
    assert (coder["effect"], coder["messages_kept"], coder["messages_set_aside"]) == ("goes_on", 6, 1)
    (files,) = found["files"]
    assert (files["added"], files["modified"], files["deleted"]) == (2, 1, 1)


async def test_a_rewind_is_stored_and_its_workflow_told(api: RunningApi, caller: Caller, database: Database) -> None:
    story, (first, second) = await at_work(api, caller, database)
    path, headers = f"/v1/tasks/{story.task_id}/rewind", {"Idempotency-Key": new_id("request")}
    body = {"checkpoint_id": first, "message": "Leave b alone."}
    asked = await caller.post(path, json=body, headers=headers)
    assert asked.status_code == 202
    view = asked.json()
    assert (view["checkpoint_id"], view["message"], view["applied_at"], view["epoch"]) == (
        first,
        "Leave b alone.",
        None,
        None,
    )
    again = await caller.post(path, json=body, headers=headers)
    assert (again.status_code, again.json(), again.headers["idempotent-replay"]) == (202, view, "true")
    reused = await caller.post(path, json={"checkpoint_id": second}, headers=headers)
    assert reused.json()["code"] == "idempotency_key_reused"
    async with database.transaction() as session:
        entries = (await session.scalars(sa.select(OutboxEntry).where(OutboxEntry.task_id == story.task_id))).all()
    assert [entry.payload for entry in entries] == [{"signal": "rewind", "arguments": [view["id"]]}]
    assert (await caller.get(f"/v1/tasks/{story.task_id}/rewinds")).json() == {"data": [view]}
    async with database.transaction() as session:
        await rewinds.apply(session, story.task_id, view["id"])
    (listed,) = (await caller.get(f"/v1/tasks/{story.task_id}/rewinds")).json()["data"]
    assert listed["epoch"] == 1
    assert listed["applied_at"] is not None
    assert (await caller.get(f"/v1/tasks/{story.task_id}")).json()["epoch"] == 1
    shown = (await caller.get(f"/v1/tasks/{story.task_id}/messages")).json()["data"]
    assert [(one["text"], one["state"]) for one in shown] == [("Leave b alone.", "received")]


async def test_refusals(api: RunningApi, caller: Caller, database: Database) -> None:
    story, (first, _) = await at_work(api, caller, database)
    path = f"/v1/tasks/{story.task_id}"
    for unknown in ("x", new_id("checkpoint")):
        asked = await caller.post(f"{path}/rewind", json={"checkpoint_id": unknown})
        assert (asked.status_code, asked.json()["code"]) == (404, "checkpoint_not_found")
        looked = await caller.get(f"{path}/checkpoints/{unknown}/preview")
        assert (looked.status_code, looked.json()["code"]) == (404, "checkpoint_not_found")
    async with api.caller() as stranger:
        for refused in (
            await stranger.post(f"{path}/rewind", json={"checkpoint_id": first}),
            await stranger.get(f"{path}/checkpoints/{first}/preview"),
            await stranger.get(f"{path}/rewinds"),
        ):
            assert (refused.status_code, refused.json()["code"]) == (404, "task_not_found")
    too_long = await caller.post(f"{path}/rewind", json={"checkpoint_id": first, "message": "x" * (64 * 1024 + 1)})
    assert fields_of(too_long) == {"message"}
    await story.state(TaskState.FAILED)
    ended = await caller.post(f"{path}/rewind", json={"checkpoint_id": first})
    assert (ended.status_code, ended.json()["code"]) == (409, "task_ended")
    assert "Fork it" in ended.json()["detail"]
    assert (await preview(caller, story, first))["can_rewind"] is False
    async with database.transaction() as session:
        rewound = await session.scalar(
            sa.select(sa.func.count())
            .select_from(Event)
            .where(Event.type == "task.rewound", Event.task_id == story.task_id)
        )
        assert rewound == 0
        assert (await session.get_one(Task, story.task_id)).epoch == 0
