"""Forks over REST, in the store: a new task with all that led to the checkpoint, and nothing of the other one changed."""

from typing import Any

import pytest
import sqlalchemy as sa

from journeyman.agents.context import resumed_note
from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.board import service as board
from journeyman.platform.board.service import Author
from journeyman.platform.branching import rewinds
from journeyman.platform.events.models import Event
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import derived_id, new_id
from journeyman.platform.kit.settings import Settings
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.plans import queries as plans
from journeyman.platform.steering.models import PersonMessage
from journeyman.platform.tasks.contract import StartTask, SubtaskProgress, TaskState
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Message, Thread
from support.api import Caller, RunningApi, api_settings, fields_of, running
from support.story import Story

FIELDS = {
    "instruction": "Do it.",
    "acceptance": ["make test"],
    "budget": {"max_tokens": 5000},
    "labels": {"team": "blue"},
    "environment": {"toolset": "python"},
}


async def at_work(caller: Caller, database: Database, **fields: Any) -> tuple[Story, str]:
    """A task with one subtask done and one at work, and the newest checkpoint."""
    story = await Story.begin(database, caller.project_id, **{**FIELDS, **fields})
    await story.plan(await story.open("planner"), "s1", "s2")
    await story.one_subtask("s1")
    return story, await story.step(await story.open("coder", "s2"), output=True)


async def fork(caller: Caller, story: Story, checkpoint_id: str, **body: Any) -> dict[str, Any]:
    response = await caller.post(f"/v1/tasks/{story.task_id}/fork", json={"checkpoint_id": checkpoint_id, **body})
    assert response.status_code == 201, response.text
    assert response.headers["location"] == f"/v1/tasks/{response.json()['id']}"
    made: dict[str, Any] = response.json()
    return made


async def of(database: Database, task_id: str, model: Any, *order: Any) -> list[Any]:
    async with database.transaction() as session:
        return list(await session.scalars(sa.select(model).where(model.task_id == task_id).order_by(*order)))


async def start_of(database: Database, task_id: str) -> StartTask:
    (entry,) = [entry for entry in await of(database, task_id, OutboxEntry) if entry.kind == "start_task"]
    return StartTask.model_validate(entry.payload)


async def everything(database: Database, task_id: str) -> list[Any]:
    """All rows of a task, as values."""
    found: list[Any] = []
    async with database.transaction() as session:
        for model in (Task, Event, Thread, Message, PersonMessage):
            key = Task.id if model is Task else sa.column("task_id")
            rows = (await session.scalars(sa.select(model).where(key == task_id))).all()
            found += sorted(
                str({column.key: getattr(row, column.key) for column in sa.inspect(model).columns}) for row in rows
            )
    return found


@pytest.mark.parametrize("state", [None, TaskState.CANCELLED, TaskState.FAILED])
async def test_a_task_goes_on_in_another(caller: Caller, database: Database, state: TaskState | None) -> None:
    story, checkpoint = await at_work(caller, database)
    await story.step(story.thread("coder", "s2"))
    if state is not None:
        await story.state(state)
    before = await everything(database, story.task_id)
    made = await fork(caller, story, checkpoint)
    assert await everything(database, story.task_id) == before
    for name in ("instruction", "acceptance", "budget", "initial_snapshot"):
        assert made[name] == getattr(await story.task(), name), name
    assert (made["title"], made["state"], made["metadata"]) == ("test (fork)", "queued", {"team": "blue"})
    assert made["forked_from"] == {"task_id": story.task_id, "checkpoint_id": checkpoint}
    assert (made["plan_revision"], made["head_snapshot"]) == (1, "s1-0-1")
    events = await of(database, made["id"], Event, Event.seq)
    assert [(event.seq, event.type) for event in events] == [(1, "task.created"), (2, "task.forked")]
    assert events[1].data["from_task_id"] == story.task_id
    assert events[1].data["from_seq"] == (await story.checkpoint(checkpoint)).event_seq
    assert [(one["id"], one["state"]) for one in events[1].data["plan"]["subtasks"]] == [
        ("s1", "completed"),
        ("s2", "running"),
    ]
    plan = (await caller.get(f"/v1/tasks/{made['id']}/plan")).json()
    assert [(one["id"], one["state"], one["summary"]) for one in plan["subtasks"]] == [
        ("s1", "completed", "Done."),
        ("s2", "running", None),
    ]
    coder = threads.thread_id_for(made["id"], "coder", "s2", 1, 1)
    progress = (await start_of(database, made["id"])).progress
    assert (progress.phase, progress.done, progress.epoch) == ("work", ["s1"], 0)
    assert progress.subtasks == {"s2": SubtaskProgress(round=1, coder=coder, coder_step=1)}
    copied = await story.messages(coder)
    assert copied[:-1] == (await story.messages(story.thread("coder", "s2")))[:4]
    assert copied[-1][1] == threads.encode(resumed_note())
    async with database.transaction() as session:
        thread = await threads.get_thread(session, coder)
        wanted = derived_id("artifact", made["id"], "tool_output", f"{coder}:out_0_0")
        assert await artifacts.find(session, made["id"], wanted) is not None
    assert (thread.snapshot, thread.base_snapshot, thread.sandbox_id, thread.epoch) == ("s2-0-0", "s1-0-1", None, 0)


async def test_what_was_spent_counts_in_the_fork(caller: Caller, database: Database) -> None:
    story, checkpoint = await at_work(
        caller, database, inherited={"tokens": 7, "cost_usd": "0.25", "steps": 2, "wall_s": 9}
    )
    await story.step(story.thread("coder", "s2"))
    made = await fork(caller, story, checkpoint)
    assert made["inherited"]["tokens"] == 6 * 100 + 7
    assert float(made["inherited"]["cost_usd"]) == 6 * 0.5 + 0.25
    assert made["inherited"]["steps"] == 6 + 2
    shown = (await caller.get(f"/v1/tasks/{made['id']}")).json()
    assert shown["inherited"] == made["inherited"]
    assert (await caller.get(f"/v1/tasks/{made['id']}/usage")).json()["inherited"]["tokens"] == 607
    usage = (await caller.get(f"/v1/tasks/{story.task_id}/usage")).json()
    assert (usage["inherited"]["tokens"], usage["tokens"]) == (7, 700)


async def test_with_another_instruction_and_budget(caller: Caller, database: Database) -> None:
    story, checkpoint = await at_work(caller, database)
    made = await fork(caller, story, checkpoint, instruction="Do it in Rust.", budget={"max_steps": 9})
    assert (made["instruction"], made["budget"]) == ("Do it in Rust.", {"max_steps": 9})
    assert (await story.task()).instruction == "Do it."
    (told,) = await of(database, made["id"], PersonMessage)
    assert told.text.endswith("Do it in Rust.")
    assert (told.seq, told.state) == (1, "received")
    assert [event.type for event in await of(database, made["id"], Event, Event.seq)][1:] == [
        "task.forked",
        "message.received",
    ]
    coder = threads.thread_id_for(made["id"], "coder", "s2", 1, 1)
    assert (await story.messages(coder))[1] == (await story.messages(story.thread("coder", "s2")))[1]
    same = await fork(caller, story, checkpoint, instruction="Do it.")
    assert await of(database, same["id"], PersonMessage) == []


async def test_what_people_had_said_is_known(caller: Caller, database: Database) -> None:
    story, _ = await at_work(caller, database)
    coder = story.thread("coder", "s2")
    await story.person("before", delivered_to=coder)
    await story.person("on its way")
    checkpoint = await story.step(coder)
    await story.person("after")
    made = await fork(caller, story, checkpoint, instruction="Something else.")
    told = await of(database, made["id"], PersonMessage, PersonMessage.seq)
    assert [(one.seq, one.state) for one in told] == [(1, "delivered"), (2, "received"), (3, "received")]
    assert [one.text for one in told[:2]] == ["before", "on its way"]
    async with database.transaction() as session:
        copy = await threads.get_thread(session, threads.thread_id_for(made["id"], "coder", "s2", 1, 1))
    assert copy.inbox_seq == 1


async def test_notes_on_the_board_are_those_of_the_point(caller: Caller, database: Database) -> None:
    story, _ = await at_work(caller, database)
    coder = story.thread("coder", "s2")
    async with database.transaction() as session:
        await board.post(session, Author(story.task_id, "coder", f"{coder}:a", coder, "s2"), "promise", "I will.")
    checkpoint = await story.step(coder)
    async with database.transaction() as session:
        await board.post(session, Author(story.task_id, "coder", f"{coder}:b", coder, "s2"), "note", "Done.", 1)
    made = await fork(caller, story, checkpoint)
    (note,) = (await caller.get(f"/v1/tasks/{made['id']}/board")).json()["data"]
    assert (note["number"], note["text"], note["closed_by"]) == (1, "I will.", None)
    assert len((await caller.get(f"/v1/tasks/{story.task_id}/board")).json()["data"]) == 2


async def test_a_fork_of_a_fork(caller: Caller, database: Database) -> None:
    story, checkpoint = await at_work(caller, database)
    made = await fork(caller, story, checkpoint)
    child = Story(database, made["id"], caller.project_id)
    child.goes_on((await start_of(database, made["id"])).progress)
    await child.state(TaskState.RUNNING)
    moved = await child.step(child.thread("coder", "s2"))
    again = await fork(caller, child, moved)
    assert again["title"] == "test (fork)"
    assert again["inherited"]["tokens"] == 600 + 100
    coder = threads.thread_id_for(again["id"], "coder", "s2", 1, 1)
    progress = (await start_of(database, again["id"])).progress
    assert progress.subtasks == {"s2": SubtaskProgress(round=1, coder=coder, coder_step=2)}
    assert progress.done == ["s1"]
    bodies = [body for _, body in await story.messages(coder)]
    assert bodies.count(threads.encode(resumed_note())) == 2
    # And it can be taken back to its own checkpoints.
    async with database.transaction() as session:
        body = rewinds.RewindTask(checkpoint_id=moved)
        asked = await rewinds.request(session, caller.project_id, child.task_id, body, author="k", key=None)
    async with database.transaction() as session:
        back = await rewinds.apply(session, child.task_id, asked.rewind.id)
    assert back.subtasks["s2"].coder_step == 2
    assert back.done == ["s1"]


async def test_a_fork_of_a_rewound_task_takes_only_what_led_to_it(caller: Caller, database: Database) -> None:
    story, checkpoint = await at_work(caller, database)
    await story.end("s2", completed=False)
    await story.state(TaskState.PLANNING)
    await story.plan(await story.open("planner", revision=2), "s3", revision=2)
    async with database.transaction() as session:
        body = rewinds.RewindTask(checkpoint_id=checkpoint)
        asked = await rewinds.request(session, caller.project_id, story.task_id, body, author="k", key=None)
    async with database.transaction() as session:
        story.goes_on(await rewinds.apply(session, story.task_id, asked.rewind.id))
    later = await story.step(story.thread("coder", "s2"))
    made = await fork(caller, story, later)
    assert [each["revision"] for each in (await caller.get(f"/v1/tasks/{made['id']}/plan")).json()["revisions"]] == [1]
    progress = (await start_of(database, made["id"])).progress
    assert (progress.epoch, progress.last_revision, progress.subtasks["s2"].coder_step) == (0, 1, 2)
    assert {thread.role for thread in await of(database, made["id"], Thread)} == {"planner", "coder", "reviewer"}


async def test_from_before_the_plan(caller: Caller, database: Database) -> None:
    story = await Story.begin(database, caller.project_id)
    prepared = await story.prepared()
    await story.plan(await story.open("planner"), "s1")
    made = await fork(caller, story, prepared)
    assert made["plan_revision"] == 0
    progress = (await start_of(database, made["id"])).progress
    assert (progress.phase, progress.revision, progress.reason, progress.subtasks) == ("plan", 1, None, {})
    assert (await caller.get(f"/v1/tasks/{made['id']}/plan")).json()["code"] == "no_plan_yet"
    async with database.transaction() as session:
        assert await plans.progress(session, made["id"], 1) == {}


async def test_sent_twice_there_is_one_fork(caller: Caller, database: Database) -> None:
    story, checkpoint = await at_work(caller, database)
    path, headers = f"/v1/tasks/{story.task_id}/fork", {"Idempotency-Key": new_id("request")}
    first = await caller.post(path, json={"checkpoint_id": checkpoint}, headers=headers)
    again = await caller.post(path, json={"checkpoint_id": checkpoint}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["idempotent-replay"] == "true"
    assert again.json()["id"] == first.json()["id"]
    other = await caller.post(path, json={"checkpoint_id": checkpoint, "instruction": "x"}, headers=headers)
    assert other.json()["code"] == "idempotency_key_reused"


async def test_refusals(caller: Caller, api: RunningApi, database: Database) -> None:
    story, checkpoint = await at_work(caller, database)
    other, others = await at_work(caller, database)
    path = f"/v1/tasks/{story.task_id}/fork"
    for body in ({"checkpoint_id": new_id("checkpoint")}, {"checkpoint_id": others}, {"checkpoint_id": "x"}):
        assert (await caller.post(path, json=body)).json()["code"] == "checkpoint_not_found"
    async with api.caller() as stranger:
        refused = await stranger.post(path, json={"checkpoint_id": checkpoint})
        assert (refused.status_code, refused.json()["code"]) == (404, "task_not_found")
    for fields, blamed in (
        ({"instruction": "x" * (1024 * 1024 + 1)}, "instruction"),
        ({"instruction": " "}, "instruction"),
        ({"budget": {"max_tokens": 0}}, "budget.max_tokens"),
        ({"budgt": {}}, "budgt"),
    ):
        refused = await caller.post(path, json={"checkpoint_id": checkpoint, **fields})
        assert fields_of(refused) == {blamed}
    assert other.task_id != story.task_id


async def test_the_replay_engine_plays_only_what_it_knows(
    settings: Settings, database: Database, tmp_path: Any
) -> None:
    async with (
        running(api_settings(settings, tmp_path, model_base_url=None)) as replaying,
        replaying.caller() as caller,
    ):
        story, checkpoint = await at_work(caller, database)
        response = await caller.post(f"/v1/tasks/{story.task_id}/fork", json={"checkpoint_id": checkpoint})
        assert response.json()["code"] == "no_model_configured"
