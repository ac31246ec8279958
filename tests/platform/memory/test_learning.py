"""What agents write: once per step, the same text once, never a secret, and never against a person's word."""

import asyncio
import uuid

import pytest
import sqlalchemy as sa

from journeyman.platform.events.log import append
from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.memory import service
from journeyman.platform.memory.models import Kind, MemoryChange
from journeyman.platform.memory.repository import memory_use
from journeyman.platform.tasks.models import Task
from journeyman.platform.tenancy.models import Project
from support.memory import Bench
from support.rows import make_project, make_task

TESTS = "Run the tests with `make test`; they need PostgreSQL."


async def test_a_memory_names_the_event_that_wrote_it(bench: Bench) -> None:
    learned = await bench.learn(TESTS)
    assert learned.outcome == "written"
    row = await bench.row(learned.memory_id)
    assert (row.text, row.kind, row.origin, row.task_id) == (TESTS, "fact", "agent", bench.task_id)
    async with bench.database.transaction() as session:
        event = await session.scalar(sa.select(Event).where(Event.id == row.source_event_id))
    assert event is not None
    assert event.data["memory_id"] == row.id
    assert event.data["outcome"] == "written"


async def test_the_same_step_writes_once(bench: Bench) -> None:
    key = uuid.uuid4().hex
    first = await bench.learn(TESTS, step_key=key)
    assert await bench.learn(TESTS, step_key=key) == first
    (row,) = await bench.rows()
    assert row.confirmations == 0
    assert len(await bench.events()) == 1


async def test_the_same_text_again_confirms_and_says_so(bench: Bench) -> None:
    first = await bench.learn(TESTS)
    key = uuid.uuid4().hex
    again = await bench.learn("run the tests with  `make test`; they need PostgreSQL. ", step_key=key)
    await bench.learn("run the tests with  `make test`; they need PostgreSQL. ", step_key=key)
    assert (again.memory_id, again.outcome) == (first.memory_id, "confirmed")
    (row,) = await bench.rows()
    assert (row.text, row.confirmations) == (TESTS, 1)
    assert [(event["outcome"], event["confirmations"]) for event in await bench.events()] == [
        ("written", 0),
        ("confirmed", 1),
    ]
    async with bench.database.transaction() as session:
        (change,) = await session.scalars(sa.select(MemoryChange).where(MemoryChange.memory_id == row.id))
    assert change.action == "confirmed"
    assert change.event_id is not None


async def test_many_at_once_make_one(bench: Bench) -> None:
    tasks = [await make_task(bench.database, bench.project_id) for _ in range(6)]
    learned = await asyncio.gather(*(bench.learn(TESTS, task_id=task_id) for task_id in tasks))
    assert len({one.memory_id for one in learned}) == 1
    assert sorted(one.outcome for one in learned) == ["confirmed"] * 5 + ["written"]
    (row,) = await bench.rows()
    assert row.confirmations == 5


async def test_projects_know_nothing_of_each_other(bench: Bench) -> None:
    other = Bench(
        bench.database, bench.vectors, bench.embedder, bench.service, project := await make_project(bench.database),
        await make_task(bench.database, project),
    )  # fmt: skip
    mine = await bench.know(TESTS)
    theirs = await other.know(TESTS)
    assert mine != theirs
    assert await bench.recall("How are the tests run?") == [mine]
    assert await other.recall("How are the tests run?") == [theirs]


async def test_a_secret_is_refused_and_nothing_is_written(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="looks like a key") as caught:
        await bench.learn("The staging API takes the key sk-live-0123456789abcdef.")
    assert caught.value.code == "looks_like_a_secret"
    assert "0123456789" not in caught.value.message
    assert await bench.rows() == []
    assert await bench.events() == []


async def test_what_a_person_has_corrected_is_not_written_again(bench: Bench) -> None:
    wrong = await bench.learn("The server listens on port 8080.")
    right = await bench.learn("The server listens on port 8443.")
    await bench.change(right.memory_id, origin="person")
    await bench.change(wrong.memory_id, superseded_by=right.memory_id)
    again = await bench.learn("The server listens on port 8080.")
    assert (again.outcome, again.memory_id) == ("outranked", right.memory_id)
    assert again.instead == "The server listens on port 8443."
    assert len(await bench.rows()) == 2
    assert (await bench.events())[-1]["outcome"] == "outranked"


async def test_what_was_merged_into_another_confirms_that_one(bench: Bench) -> None:
    old = await bench.learn("Tests need PostgreSQL.")
    new = await bench.learn("The tests need a PostgreSQL database.")
    await bench.change(old.memory_id, superseded_by=new.memory_id)
    again = await bench.learn("Tests need PostgreSQL.")
    assert (again.outcome, again.memory_id) == ("confirmed", new.memory_id)
    assert (await bench.row(new.memory_id)).confirmations == 1


async def test_what_was_deleted_may_be_learnt_anew(bench: Bench) -> None:
    gone = await bench.learn(TESTS)
    await bench.change(gone.memory_id, deleted_at=sa.func.now())
    again = await bench.learn(TESTS)
    assert again.outcome == "written"
    assert again.memory_id != gone.memory_id


async def test_an_acceptance_command_is_never_kept(bench: Bench) -> None:
    await allow(bench, Task, bench.task_id, acceptance=["python3 -m pytest  tests/held_out"])
    with pytest.raises(InvalidInput, match="acceptance command") as caught:
        await bench.learn("All is well once `Python3 -m pytest tests/held_out` passes.")
    assert caught.value.code == "holds_verification"
    await bench.learn("The tests of this project are run by pytest.")
    assert len(await bench.rows()) == 1


async def test_lessons_are_kept_once_after_the_end_without_secrets_and_verification(bench: Bench) -> None:
    await allow(bench, Task, bench.task_id, acceptance=["make check"])
    lessons: list[tuple[Kind, str]] = [
        ("lesson", "A review found: the cache was never emptied."),
        ("lesson", "A review found: make check fails on the second run."),
        ("lesson", "A review found: the key is sk-live-0123456789abcdef."),
    ]
    for _ in range(2):
        async with bench.database.transaction() as session:
            await service.reflect(session, bench.project_id, bench.task_id, lessons)
    texts = [row.text for row in await bench.rows()]
    assert "A review found: the cache was never emptied." in texts
    assert not any("make check" in text or "0123456789" in text for text in texts)
    assert all(row.confirmations == 0 for row in await bench.rows())
    assert await bench.events() == [], "the log of an ended task is closed"


@pytest.mark.parametrize("type_", [EventType.PLAN_PROPOSED, EventType.PLAN_EDITED, EventType.PLAN_REVISED])
async def test_an_acceptance_command_of_a_plan_is_never_kept(bench: Bench, type_: EventType) -> None:
    async with bench.database.transaction() as session:
        await append(session, bench.task_id, type_, {"revision": 1, "acceptance": ["pytest tests/of_plan"]})
    with pytest.raises(InvalidInput) as caught:
        await bench.learn("The interesting cases are in tests/of_plan.")
    assert caught.value.code == "holds_verification"
    assert await bench.rows() == []


async def test_a_fork_keeps_nothing_of_the_verification_of_the_task_it_comes_from(bench: Bench) -> None:
    await allow(bench, Task, bench.task_id, acceptance=["pytest tests/of_ancestor"])
    fork, fork_of_fork = [await make_task(bench.database, bench.project_id) for _ in range(2)]
    await allow(bench, Task, fork, forked_from={"task_id": bench.task_id, "checkpoint_id": "c"})
    await allow(bench, Task, fork_of_fork, forked_from={"task_id": fork, "checkpoint_id": "c"})
    with pytest.raises(InvalidInput) as caught:
        await bench.learn("The interesting cases are in tests/of_ancestor.", task_id=fork_of_fork)
    assert caught.value.code == "holds_verification"
    await fail_verification(bench)
    with pytest.raises(InvalidInput) as caught:
        await bench.learn("Sums are kept in cents.", task_id=fork_of_fork)
    assert caught.value.code == "verification_failed"
    assert await bench.rows() == []


async def test_nothing_is_kept_once_verification_has_failed(bench: Bench) -> None:
    key = uuid.uuid4().hex
    before = await bench.learn(TESTS, step_key=key)
    await fail_verification(bench)
    with pytest.raises(InvalidInput, match="verification has failed") as caught:
        await bench.learn("Sums of an empty basket are 0.00, as the platform's run said.")
    assert caught.value.code == "verification_failed"
    assert await bench.learn(TESTS, step_key=key) == before, "a repeated step is told what it was told before"
    async with bench.database.transaction() as session:
        lessons: list[tuple[Kind, str]] = [("lesson", "A review found: sums of an empty basket are wrong.")]
        assert await service.reflect(session, bench.project_id, bench.task_id, lessons) == 0
    assert [row.text for row in await bench.rows()] == [TESTS]
    other = await make_task(bench.database, bench.project_id)
    assert (await bench.learn("Sums are kept in cents.", task_id=other)).outcome == "written"


async def fail_verification(bench: Bench) -> None:
    async with bench.database.transaction() as session:
        await append(
            session, bench.task_id, EventType.ACCEPTANCE_FAILED, {"command": "pytest tests", "output": "empty"}
        )


@pytest.mark.parametrize("of", [Task, Project])
async def test_memory_that_is_switched_off_is_not_written(bench: Bench, of: type[Task | Project]) -> None:
    await allow(bench, of, bench.task_id if of is Task else bench.project_id, memory={"write": False})
    with pytest.raises(InvalidInput, match="switched off") as caught:
        await bench.learn(TESTS)
    assert caught.value.code == "memory_off"
    async with bench.database.transaction() as session:
        assert await service.reflect(session, bench.project_id, bench.task_id, [("lesson", "Cut twice.")]) == 0
        task = await session.get_one(Task, bench.task_id)
        assert await memory_use(session, task) == (True, False)
    assert await bench.rows() == []


async def allow(bench: Bench, model: type[Task | Project], row_id: str, **values: object) -> None:
    async with bench.database.transaction() as session:
        await session.execute(sa.update(model).where(model.id == row_id).values(**values))
