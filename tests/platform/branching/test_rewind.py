"""A rewind in the store: what is copied, reset, set aside and told."""

from typing import Any

import pytest
import sqlalchemy as sa

from journeyman.agents.context import resumed_note
from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.board import service as board
from journeyman.platform.board.models import Note
from journeyman.platform.board.service import Author
from journeyman.platform.branching import rewinds
from journeyman.platform.branching.schemas import RewindTask
from journeyman.platform.checkpoints import queries
from journeyman.platform.events.log import append
from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.plans import queries as plan_queries
from journeyman.platform.plans import repository as plans
from journeyman.platform.steering.models import PersonMessage
from journeyman.platform.tasks.contract import SubtaskProgress, TaskProgress, TaskState
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Message, Thread
from journeyman.platform.threads.search import search_task
from support.story import Story


async def rewind(story: Story, checkpoint_id: str, message: str | None = None) -> TaskProgress:
    """Ask for a rewind and apply it; the story goes on in the new epoch."""
    async with story.database.transaction() as session:
        body = RewindTask(checkpoint_id=checkpoint_id, message=message)
        asked = await rewinds.request(session, story.project_id, story.task_id, body, author="key_x", key=None)
    async with story.database.transaction() as session:
        progress = await rewinds.apply(session, story.task_id, asked.rewind.id)
    async with story.database.transaction() as session:
        assert await rewinds.apply(session, story.task_id, asked.rewind.id) == progress
    story.goes_on(progress)
    return progress


async def rows(story: Story, model: Any, *conditions: Any) -> list[Any]:
    async with story.database.transaction() as session:
        return list(await session.scalars(sa.select(model).where(model.task_id == story.task_id, *conditions)))


async def subtask_states(story: Story, revision: int = 1) -> dict[str, str]:
    async with story.database.transaction() as session:
        found = await plan_queries.progress(session, story.task_id, revision)
        return {name: subtask.state for name, subtask in found.items()}


async def planned(database: Database, *subtasks: str) -> Story:
    story = await Story.begin(database)
    await story.plan(await story.open("planner"), *(subtasks or ("s1", "s2")))
    return story


async def test_a_coder_goes_on_from_an_earlier_step(database: Database) -> None:
    story = await planned(database)
    old = await story.open("coder", "s1")
    await story.step(old)
    wanted = await story.step(old)
    await story.step(old)
    await story.work(old)
    before = await story.messages(old)
    seqs = (await story.checkpoint(wanted)).event_seq, (await story.task()).last_seq
    progress = await rewind(story, wanted)
    new = story.thread("coder", "s1")
    assert new != old
    assert progress.phase == "work"
    assert progress.subtasks == {"s1": SubtaskProgress(round=1, coder=new, coder_step=2)}
    # The conversation, byte for byte up to the step, and then the note; the old one is left as it was.
    copied = await story.messages(new)
    assert copied[:-1] == before[:6]
    assert copied[-1][1] == threads.encode(resumed_note())
    assert await story.messages(old) == before
    copies = {thread.id: thread for thread in await rows(story, Thread)}
    assert copies[old].superseded_at is not None
    assert copies[new].superseded_at is None
    assert (copies[new].snapshot, copies[new].base_snapshot, copies[new].sandbox_id) == ("s1-0-1", "initial", None)
    assert (copies[new].epoch, copies[new].last_seq) == (1, 7)
    (event,) = await rows(story, Event, Event.type == "task.rewound")
    assert (event.data["to_seq"], event.data["from_seq"], event.data["epoch"]) == (*seqs, 1)
    assert event.data["threads"][new] == old
    assert [one["state"] for one in event.data["plan"]["subtasks"]] == ["running", "pending"]


async def test_a_worker_that_wakes_up_late_changes_nothing(database: Database) -> None:
    story = await planned(database)
    old = await story.open("coder", "s1")
    checkpoint = await story.step(old)
    await rewind(story, checkpoint)
    before = (await story.task()).last_seq
    for late in (
        story.say(old, f"{old}:1:answer", "late"),
        story.step(old),
    ):
        with pytest.raises(Conflict, match="history") as refused:
            await late
        assert refused.value.code == "superseded"
    assert (await story.task()).last_seq == before


async def test_files_and_plan_are_those_of_the_checkpoint(database: Database) -> None:
    story = await planned(database)
    first = await story.one_subtask("s1")
    coder = await story.open("coder", "s2")
    await story.step(coder)
    assert (await story.task()).head_snapshot == "s1-0-1"
    await rewind(story, first["coder"])
    task = await story.task()
    assert (task.head_snapshot, task.plan_revision, task.epoch, task.state) == ("initial", 1, 1, "running")
    assert await subtask_states(story) == {"s1": "running", "s2": "pending"}
    async with database.transaction() as session:
        newest = await queries.newest(session, task)
    assert newest is not None
    assert newest.id == first["coder"]


async def test_done_work_stays_done_with_its_summary(database: Database) -> None:
    story = await planned(database)
    await story.one_subtask("s1")
    coder = await story.open("coder", "s2")
    checkpoint = await story.step(coder)
    await story.work(coder)
    progress = await rewind(story, checkpoint)
    assert progress.done == ["s1"]
    assert list(progress.subtasks) == ["s2"]
    assert (await story.task()).head_snapshot == "s1-0-1"
    async with database.transaction() as session:
        done = await plans.get_subtask(session, story.task_id, 1, "s1")
        going_on = await plans.get_subtask(session, story.task_id, 1, "s2")
    assert (done.state, done.rounds, done.snapshot, done.summary) == ("completed", 1, "s1-0-1", "Done.")
    assert (going_on.state, going_on.base_snapshot, going_on.summary) == ("running", "s1-0-1", None)


async def test_of_two_at_once_the_other_is_cut_to_its_own_checkpoint(database: Database) -> None:
    story = await planned(database)
    one, two = await story.open("coder", "s1"), await story.open("coder", "s2")
    await story.step(one)
    await story.step(two)
    # The first answers again: its call may have run in part when the second makes its checkpoint.
    await story.answer(one)
    checkpoint = await story.step(two)
    await story.step(two)
    progress = await rewind(story, checkpoint)
    assert {id_: sub.coder_step for id_, sub in progress.subtasks.items()} == {"s1": 1, "s2": 2}
    assert [key for key, _ in await story.messages(story.thread("coder", "s1"))][:-1] == [
        "system",
        "opening",
        "0:answer",
        "0:0:result",
    ]


async def test_one_that_had_no_checkpoint_yet_is_opened_anew(database: Database) -> None:
    story = await planned(database)
    one = await story.open("coder", "s1")
    await story.open("coder", "s2")
    checkpoint = await story.step(one)
    progress = await rewind(story, checkpoint)
    assert list(progress.subtasks) == ["s1"]
    assert await subtask_states(story) == {"s1": "running", "s2": "pending"}
    async with database.transaction() as session:
        assert await session.get(Thread, story.thread("coder", "s2")) is None


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("work", {"round": 1, "coder_step": 1}),
        ("reviewer", {"round": 1, "coder_step": 2, "reviewer_step": 1}),
        ("review", {"round": 1, "coder_step": 2, "reviewer_step": 1}),
    ],
)
async def test_what_was_handed_over_is_handed_over_again(database: Database, at: str, expected: dict[str, int]) -> None:
    story = await planned(database)
    checkpoint = (await story.one_subtask("s1"))[at]
    progress = await rewind(story, checkpoint)
    found = progress.subtasks["s1"]
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.reviewer == (story.thread("reviewer", "s1") if at != "work" else None)
    # At the step of a submission all is stored: its answer, and its result.
    stored = {key for key, _ in await story.messages(found.reviewer or found.coder or "")}
    assert {"1:answer", "1:0:result"} <= stored or at == "reviewer"


async def test_findings_are_delivered_again_when_the_coder_had_not_gone_on(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    await story.work(coder)
    reviewer = await story.open("reviewer", "s1")
    checkpoint = await story.review(reviewer, "request_changes")
    await story.findings(coder)
    later = await story.step(coder)
    progress = await rewind(story, checkpoint)
    assert progress.subtasks["s1"].reviewer_step == 0
    assert "findings:1" not in dict(await story.messages(story.thread("coder", "s1")))
    progress = await rewind(story, later)
    assert progress.subtasks["s1"] == SubtaskProgress(round=2, coder=story.thread("coder", "s1"), coder_step=2)
    assert "findings:1" in dict(await story.messages(story.thread("coder", "s1")))


async def test_back_to_planning(database: Database) -> None:
    story = await Story.begin(database)
    prepared = await story.prepared()
    planner = await story.open("planner")
    exploring = await story.step(planner)
    submitted = await story.plan(planner, "s1", "s2")
    await story.one_subtask("s1")

    progress = await rewind(story, submitted)
    assert (progress.phase, progress.revision, progress.planner_step) == ("plan", 1, 1)
    assert (await story.task()).state == "planning"
    assert (await story.task()).plan_revision == 1
    assert await subtask_states(story) == {"s1": "pending", "s2": "pending"}

    progress = await rewind(story, exploring)
    assert (progress.phase, progress.revision, progress.last_revision, progress.planner_step) == ("plan", 2, 2, 1)
    assert (await story.task()).plan_revision == 0
    assert set((await subtask_states(story)).values()) == {"superseded"}
    async with database.transaction() as session:
        copy = await threads.get_thread(session, story.thread("planner", revision=2))
        assert copy.revision == 2
        assert (await plans.get_plan(session, story.task_id, 1)).revision == 1

    progress = await rewind(story, prepared)
    assert (progress.phase, progress.revision, progress.planner_step) == ("plan", 3, 0)
    assert progress.reason
    assert progress.subtasks == {}


async def test_back_and_forward_again(database: Database) -> None:
    story = await planned(database)
    first = await story.one_subtask("s1")
    second = await story.open("coder", "s2")
    far = await story.step(second)
    await rewind(story, first["coder"])
    coder = story.thread("coder", "s1")
    other_way = await story.step(coder)
    progress = await rewind(story, far)
    assert (progress.epoch, progress.done) == (2, ["s1"])
    assert await subtask_states(story) == {"s1": "completed", "s2": "running"}
    assert (await story.task()).head_snapshot == "s1-0-1"
    progress = await rewind(story, other_way)
    assert progress.subtasks["s1"].coder_step == 2
    assert (await story.task()).head_snapshot == "initial"
    async with database.transaction() as session:
        copy = await threads.get_thread(session, story.thread("coder", "s1"))
    assert copy.snapshot == "s1-1-1"
    # Each resumption of this conversation is told: that of the first rewind, which the cut holds, and this one's.
    assert [body for _, body in await story.messages(copy.id)].count(threads.encode(resumed_note())) == 2


async def test_twice_to_the_same_checkpoint(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    checkpoint = await story.step(coder)
    await story.step(coder)
    one = await rewind(story, checkpoint)
    messages = await story.messages(story.thread("coder", "s1"))
    two = await rewind(story, checkpoint)
    assert (one.epoch, two.epoch) == (1, 2)
    again = await story.messages(story.thread("coder", "s1"))
    assert [body for _, body in again] == [body for _, body in messages]
    assert len([each for each in await rows(story, Thread) if each.superseded_at is None]) == 2


async def test_copies_that_have_not_moved_are_kept_at_the_next_rewind(database: Database) -> None:
    story = await planned(database)
    one, two = await story.open("coder", "s1"), await story.open("coder", "s2")
    await story.step(one)
    checkpoint = await story.step(two)
    await rewind(story, checkpoint)
    moved = await story.step(story.thread("coder", "s2"))
    progress = await rewind(story, moved)
    assert {id_: sub.coder_step for id_, sub in progress.subtasks.items()} == {"s1": 1, "s2": 2}
    assert len(await story.messages(story.thread("coder", "s1"))) == 5


async def test_a_context_before_its_summary(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    checkpoint = await story.step(coder)
    segment = f"{coder}:segment:1"
    for name in ("request", "summary", "next:0"):
        await story.say(coder, f"{segment}:{name}", name)
    async with database.transaction() as session:
        thread = await threads.get_thread(session, coder)
        thread.segment, thread.segment_start = {"segment": 2}, 7
    later = await story.step(coder)
    await rewind(story, checkpoint)
    async with database.transaction() as session:
        copy = await threads.get_thread(session, story.thread("coder", "s1"))
    assert (copy.segment_start, copy.segment) == (2, None)
    await rewind(story, later)
    async with database.transaction() as session:
        copy = await threads.get_thread(session, story.thread("coder", "s1"))
        assert (copy.segment_start, copy.segment) == (7, {"segment": 2})
        visible = [key.removeprefix(copy.id) for key, _ in await threads.visible_bodies(session, copy)]
    assert visible[:2] == [":system", ":segment:1:next:0"]


async def test_kept_outputs_can_be_read_again(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    checkpoint = await story.step(coder, output=True)
    await story.step(coder, output=True)
    await rewind(story, checkpoint)
    new = story.thread("coder", "s1")
    async with database.transaction() as session:
        found = [
            await artifacts.find(
                session, story.task_id, derived_id("artifact", story.task_id, "tool_output", f"{new}:out_{number}_0")
            )
            for number in range(2)
        ]
    assert found[0] is not None
    assert found[0].digest == "digest of 0"
    assert found[1] is None


async def test_spent_budget_stays_spent_and_copies_count_once(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    checkpoint = await story.step(coder)
    await story.step(coder)
    await rewind(story, checkpoint)
    again = await story.step(story.thread("coder", "s1"))
    assert (await story.checkpoint(checkpoint)).budget["steps"] == 2
    budget = (await story.checkpoint(again)).budget
    assert (budget["steps"], budget["tokens"]) == (4, 400)


async def test_recall_finds_what_is_in_force_once(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    await story.say(coder, f"{coder}:a", "the walrus lives in the cellar")
    checkpoint = await story.step(coder)
    await story.say(coder, f"{coder}:b", "the walrus moved to the attic")
    await rewind(story, checkpoint)
    async with database.transaction() as session:
        found = await search_task(session, story.task_id, "walrus")
    assert [passage.text for passage in found] == ["the walrus lives in the cellar"]


async def test_what_people_said_later_is_set_aside_unless_nobody_has_read_it(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    await story.person("early", delivered_to=coder)
    checkpoint = await story.step(coder)
    await story.person("late and read", delivered_to=coder)
    far = await story.step(coder)
    await story.person("late and unread")
    await rewind(story, checkpoint, "Use the other library.")
    found = {row.text: row for row in await rows(story, PersonMessage)}
    assert {text for text, row in found.items() if row.set_aside_at} == {"late and read"}
    assert [found[text].state for text in ("early", "late and unread")] == ["delivered", "received"]
    told = found["Use the other library."]
    assert (told.seq, told.state, told.mode, told.author) == (4, "received", "queue", "key_x")
    async with database.transaction() as session:
        copy = await threads.get_thread(session, story.thread("coder", "s1"))
    assert copy.inbox_seq == 1
    # Forward again: it counts again, and what was said in between does not.
    async with database.transaction() as session:
        await session.execute(sa.update(PersonMessage).where(PersonMessage.id == told.id).values(state="acted_on"))
    await rewind(story, far)
    found = {row.text: row for row in await rows(story, PersonMessage)}
    assert {text for text, row in found.items() if row.set_aside_at} == {"Use the other library."}


async def test_a_message_that_was_on_its_way_is_on_its_way_again(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    await story.person("read at the next step")
    checkpoint = await story.step(coder)
    async with database.transaction() as session:
        await append(session, story.task_id, EventType.MESSAGE_DELIVERED, {"message_number": 1})
        await session.execute(
            sa.update(PersonMessage).where(PersonMessage.task_id == story.task_id).values(state="delivered")
        )
    await rewind(story, checkpoint)
    (message,) = await rows(story, PersonMessage)
    assert (message.state, message.set_aside_at) == ("received", None)


async def test_notes_on_the_board_are_those_of_the_point(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")

    async def note(number: int) -> None:
        async with database.transaction() as session:
            await board.post(
                session, Author(story.task_id, "coder", f"{coder}:{number}", coder), "note", f"note {number}"
            )

    await note(1)
    checkpoint = await story.step(coder)
    await note(2)
    far = await story.step(coder)
    for target, expected in ((checkpoint, [2]), (far, [])):
        await rewind(story, target)
        assert [row.seq for row in await rows(story, Note) if row.set_aside_at is not None] == expected


@pytest.mark.parametrize(
    ("reason", "after"),
    [("user", "user"), ("budget", "budget"), ("circuit_breaker", None), ("model_unavailable", None)],
)
async def test_only_pauses_whose_reason_still_holds_are_kept(
    database: Database, reason: str, after: str | None
) -> None:
    story = await planned(database)
    checkpoint = await story.step(await story.open("coder", "s1"))
    async with database.transaction() as session:
        await lifecycle.pause(session, story.task_id, reason)
    progress = await rewind(story, checkpoint)
    assert progress.paused_for == after
    assert (await story.task()).paused_reason == after


@pytest.mark.parametrize("state", [TaskState.PLANNING, TaskState.AWAITING_APPROVAL, TaskState.VERIFYING])
async def test_from_any_state_the_task_goes_on_working(database: Database, state: TaskState) -> None:
    story = await planned(database)
    checkpoint = await story.step(await story.open("coder", "s1"))
    if state == TaskState.AWAITING_APPROVAL:
        await story.state(TaskState.PLANNING)
    await story.state(state)
    await rewind(story, checkpoint)
    assert (await story.task()).state == "running"


async def test_the_next_plan_takes_a_number_that_no_branch_has_used(database: Database) -> None:
    story = await planned(database)
    coder = await story.open("coder", "s1")
    checkpoint = await story.step(coder)
    await story.end("s1", completed=False)
    await story.state(TaskState.PLANNING)
    await story.plan(await story.open("planner", revision=2), "s1", revision=2)
    await story.state(TaskState.PLANNING)
    await story.step(await story.open("planner", revision=3))
    progress = await rewind(story, checkpoint)
    assert (progress.revision, progress.last_revision, progress.plans) == (1, 3, 1)
    assert await subtask_states(story, 2) == {"s1": "superseded"}
    async with database.transaction() as session:
        assert await plans.done_subtasks(session, story.task_id, before_revision=4) == []


async def test_a_rewind_during_replanning(database: Database) -> None:
    story = await planned(database, "s1")
    coder = await story.open("coder", "s1")
    await story.step(coder)
    await story.end("s1", completed=False)
    await story.state(TaskState.PLANNING)
    planner = await story.open("planner", revision=2)
    checkpoint = await story.step(planner)
    await story.step(planner)
    progress = await rewind(story, checkpoint)
    assert (progress.phase, progress.revision, progress.plans, progress.planner_step) == ("plan", 2, 2, 1)
    assert await subtask_states(story) == {"s1": "failed"}
    assert (await story.task()).plan_revision == 1


async def test_nothing_of_another_task_moves(database: Database) -> None:
    story, other = await planned(database), await planned(database)
    neighbour = await other.open("coder", "s1")
    await other.step(neighbour)
    checkpoint = await story.step(await story.open("coder", "s1"))
    before = (await other.task()).last_seq, await other.messages(neighbour)
    await rewind(story, checkpoint)
    assert ((await other.task()).last_seq, await other.messages(neighbour)) == before
    assert [row.superseded_at for row in await rows(other, Thread)] == [None, None]
    async with database.transaction() as session:
        count = await session.scalar(
            sa.select(sa.func.count()).select_from(Message).where(Message.task_id == other.task_id)
        )
    assert count == 8
