"""Pausing at a limit and going on behind it: each of the races that can lie between."""

import asyncio
from datetime import timedelta

import pytest
import sqlalchemy as sa

from journeyman.platform.budgets import repository, service
from journeyman.platform.budgets.schemas import ProjectBudget
from journeyman.platform.events.models import Event
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.errors import BudgetExhausted
from journeyman.platform.kit.ids import new_id
from journeyman.platform.ledger.models import Account
from journeyman.platform.lifecycle import service as tasks
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.tasks.contract import TaskState
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import for_step, lock_task
from support.rows import make_project, make_task


@pytest.fixture
async def project(database):
    return await make_project(database)


@pytest.fixture
async def task(database, project):
    return await make_task(database, project, state="running")


async def change(database, project, **limits):
    async with database.transaction() as session:
        return await service.change(session, project, ProjectBudget(**limits))


def facts(level="project", limit="max_tokens", of=100, **more):
    return {"level": level, "limit": limit, "spent": 100, "of": of, "period": "total", "since": "1970-01-01", **more}


async def stop(database, task, **said):
    async with database.transaction() as session:
        await service.exhausted(session, task, facts(**said), "The budget is used up.")


async def state(database, task):
    async with database.transaction() as session:
        row = await session.get_one(Task, task)
        signals = await session.scalars(
            sa.select(OutboxEntry).where(OutboxEntry.task_id == task, OutboxEntry.kind == "signal_task")
        )
        events = await session.scalars(sa.select(Event.type).where(Event.task_id == task).order_by(Event.seq))
        return row.paused_reason, [entry.payload["signal"] for entry in signals], list(events)


async def test_raising_the_limit_resumes_each_task_once(database, project, task):
    other = await make_task(database, project, state="running")
    own = await make_task(database, project, state="running")
    async with database.transaction() as session:
        (await session.get_one(Task, own)).budget = {"max_tokens": 100}
    await change(database, project, max_tokens=100)
    await stop(database, task)
    await stop(database, task)
    await stop(database, other)
    await stop(database, own, level="task")
    assert (await change(database, project, max_tokens=90)).resumed == 0

    async def raised():
        async with database.transaction() as session:
            return (await service.change(session, project, ProjectBudget(max_tokens=200))).resumed

    assert sum(await asyncio.gather(*(raised() for _ in range(4)))) == 2
    for each in (task, other):
        assert await state(database, each) == (
            None, ["resume"], ["task.paused", "budget.exhausted", "task.resumed"],
        )  # fmt: skip
    assert (await state(database, own))[0] == "budget"


async def test_a_limit_raised_before_the_pause_is_written_is_not_missed(database, project, task):
    await change(database, project, max_tokens=200)
    await stop(database, task, of=100)
    assert await state(database, task) == (None, ["resume"], ["task.paused", "budget.exhausted", "task.resumed"])
    await stop(database, task, level="task", of=100)
    assert (await state(database, task))[1] == ["resume", "resume"], "the task has no such limit any more"


async def test_lowering_and_taking_away(database, project, task):
    await change(database, project, max_tokens=100, max_steps=5)
    await stop(database, task)
    assert (await change(database, project, max_steps=500)).resumed == 0
    changed = await change(database, project, max_tokens=None)
    assert changed.resumed == 1
    assert changed.standing.budget == {"max_steps": 500}
    await stop(database, task, limit="max_steps", of=500)
    assert (await change(database, project, period="day")).resumed == 1


async def test_a_tasks_own_limit_does_not_lift_the_projects(database, project, task):
    await change(database, project, max_tokens=100)
    await stop(database, task)
    async with database.transaction() as session:
        await tasks.change_budget(session, project, task, {"max_tokens": 10**9})
    assert (await state(database, task))[:2] == ("budget", [])


async def test_a_new_period_resumes_what_waited_for_it(database, project, task, monkeypatch):
    today = now().date()
    await change(database, project, max_tokens=100, period="day")
    await stop(database, task, period="day", since=today.isoformat())

    async def renewed():
        async with database.transaction() as session:
            return await service.renew(session)

    assert (await renewed(), await state(database, task)) == (0, await state(database, task))
    tomorrow = now() + timedelta(days=1)
    monkeypatch.setattr("journeyman.platform.budgets.service.now", lambda: tomorrow)
    await renewed()
    await renewed()
    assert (await state(database, task))[:2] == (None, ["resume"])


async def test_warned_once_for_each_limit_by_whichever_task_crosses_the_mark(database, project, task):
    other = await make_task(database, project, state="running")
    await change(database, project, max_tokens=100)
    async with database.transaction() as session:
        session.add(Account(scope=project, day=now().date(), tokens=85))

    async def warned(each):
        async with database.transaction() as session:
            await service.warn(session, await for_step(session, each))

    await asyncio.gather(*(warned(each) for each in (task, other, task, other)))
    found = (await state(database, task))[2] + (await state(database, other))[2]
    assert found == ["budget.warned"]
    await change(database, project, max_tokens=101)
    await warned(task)
    found = (await state(database, task))[2] + (await state(database, other))[2]
    assert found == ["budget.warned"] * 2


async def test_the_clock_stands_while_the_task_waits(database, project, task):
    async def worked():
        async with database.transaction() as session:
            found = await repository.standings(session, project, task, now(), always=True)
            return [float(standing.spent["max_wall_s"]) for standing in found]

    async def back_dated(seconds):
        async with database.transaction() as session:
            await session.execute(
                sa.update(Task)
                .where(Task.id == task)
                .values(working_since=Task.working_since - timedelta(seconds=seconds))
            )

    queued = await make_task(database, project)
    async with database.transaction() as session:
        await lifecycle.transition(session, queued, TaskState.PREPARING)
        assert (await session.get_one(Task, queued)).working_since is not None
        await lifecycle.transition(session, queued, TaskState.CANCELLED)
    async with database.transaction() as session:
        await lifecycle.pause(session, task, "user")
    async with database.transaction() as session:
        await lifecycle.resume(session, task)
    await back_dated(100)
    assert all(100 <= each < 110 for each in await worked())
    async with database.transaction() as session:
        row = await lock_task(session, task)
        row.waiting_for = [new_id("approval")]
    stopped = await worked()
    assert all(100 <= each < 110 for each in stopped)
    assert await worked() == stopped
    async with database.transaction() as session:
        row = await lock_task(session, task)
        row.waiting_for = []
    await back_dated(50)
    assert all(150 <= each < 165 for each in await worked())
    await change(database, project, max_wall_s=120)
    async with database.transaction() as session:
        with pytest.raises(BudgetExhausted) as caught:
            await service.check(session, await for_step(session, task))
    assert (caught.value.details["level"], caught.value.details["limit"]) == ("project", "max_wall_s")
