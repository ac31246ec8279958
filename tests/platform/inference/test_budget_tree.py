"""Limits of a task and of its project, together and under concurrency; the accounts always say what the ledger says."""

import asyncio
import random
from datetime import date, timedelta
from decimal import Decimal

import pytest
import sqlalchemy as sa

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.errors import BudgetExhausted
from journeyman.platform.ledger.models import Account, LedgerEntry
from journeyman.platform.ledger.pricing import Price, PriceTable
from journeyman.platform.ledger.service import LedgerCall, LedgerService
from journeyman.platform.ledger.usage import TokenUsage
from journeyman.platform.tasks.models import Task
from journeyman.platform.tenancy.models import Project
from support.rows import make_task

PRICES = PriceTable([Price(match="m", input=Decimal(1), output=Decimal(2))])


@pytest.fixture
def ledger(database):
    return LedgerService(database, PRICES)


async def limit(database, model, row_id, **budget):
    async with database.transaction() as session:
        await session.execute(sa.update(model).where(model.id == row_id).values(budget=budget))


def call(project, task, step, *, tokens=1000, **more):
    return LedgerCall(project, step, more.pop("attempt", 1), "model", more.pop("model", "m"), tokens, 0, task, **more)


async def refused(ledger, wanted):
    with pytest.raises(BudgetExhausted) as caught:
        await ledger.reserve(wanted)
    return caught.value.details


async def accounts_agree(database, project):
    """Compares every account of the project with the sum of its ledger entries, and returns the project's tokens."""
    is_open = LedgerEntry.state.in_(["reserved", "ambiguous"])
    sums = (
        sa.func.sum(LedgerEntry.prompt_tokens + LedgerEntry.completion_tokens),
        sa.func.sum(LedgerEntry.cost_usd),
        sa.func.count(LedgerEntry.step_key.distinct()).filter(
            LedgerEntry.state != "released", LedgerEntry.kind == "model"
        ),
        sa.func.coalesce(sa.func.sum(LedgerEntry.reserved_tokens).filter(is_open), 0),
        sa.func.coalesce(sa.func.sum(LedgerEntry.reserved_cost_usd).filter(is_open), 0),
    )
    columns = (Account.tokens, Account.cost_usd, Account.steps, Account.reserved_tokens, Account.reserved_cost_usd)
    async with database.transaction() as session:
        await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        tasks = await session.execute(
            sa.select(LedgerEntry.task_id, *sums)
            .where(LedgerEntry.project_id == project, LedgerEntry.task_id.is_not(None))
            .group_by(LedgerEntry.task_id)
        )
        expected = {row[0]: tuple(row[1:]) for row in tasks}
        # One view of everything, also while calls go on.
        whole = (await session.execute(sa.select(*sums).where(LedgerEntry.project_id == project))).one()
        expected[project] = tuple(whole)
        found = await session.execute(
            sa.select(Account.scope, *(sa.func.sum(column) for column in columns))
            .where(Account.scope.in_(expected))
            .group_by(Account.scope)
        )
        assert {row[0]: tuple(row[1:]) for row in found} == expected
    return int(whole[0] or 0) + int(whole[3])


async def test_a_projects_limit_counts_all_of_its_tasks(database, project, task, ledger):
    other = await make_task(database, project)
    await limit(database, Project, project, max_tokens=2500)
    await ledger.reserve(call(project, task, "a"))
    await ledger.reserve(call(project, other, "b"))
    said = await refused(ledger, call(project, task, "c"))
    assert said == {
        "level": "project", "limit": "max_tokens", "spent": 2000, "requested": 1000, "of": 2500, "period": "total",
        "since": "1970-01-01",
    }  # fmt: skip
    assert (await refused(ledger, call(project, None, "d")))["level"] == "project"
    await limit(database, Project, project, max_tokens=3000)
    await ledger.reserve(call(project, task, "c"))
    await accounts_agree(database, project)


async def test_the_nearer_limit_is_named(database, project, task, ledger):
    await limit(database, Project, project, max_tokens=500)
    await limit(database, Task, task, max_tokens=500)
    assert (await refused(ledger, call(project, task, "a")))["level"] == "task"
    await limit(database, Task, task, max_cost_usd=0.0005)
    await limit(database, Project, project)
    said = await refused(ledger, call(project, task, "a"))
    assert (said["level"], said["limit"], said["of"]) == ("task", "max_cost_usd", 0.0005)


async def test_a_fork_counts_what_it_inherited_against_its_own_limit_only(database, project, task, ledger):
    async with database.transaction() as session:
        inherited = {"tokens": 900, "cost_usd": "0.5", "steps": 3, "wall_s": 60}
        await session.execute(sa.update(Task).where(Task.id == task).values(inherited=inherited))
    await limit(database, Project, project, max_tokens=1000)
    await limit(database, Task, task, max_tokens=1500)
    assert (await refused(ledger, call(project, task, "a")))["spent"] == 900
    await limit(database, Task, task, max_steps=3)
    assert (await refused(ledger, call(project, task, "a")))["limit"] == "max_steps"
    await limit(database, Task, task, max_tokens=1900)
    await ledger.reserve(call(project, task, "a"))


@pytest.mark.parametrize(
    ("period", "counted"), [("day", 0), ("month", 1), ("total", 2)], ids=["a day", "a month", "for good"]
)
async def test_periods(database, project, task, ledger, period, counted):
    today = now().date()
    days = {today - timedelta(days=400), today.replace(day=1) if today.day > 1 else today - timedelta(days=400)}
    if today.day == 1:
        counted = {"day": 0, "month": 0, "total": 1}[period]
    async with database.transaction() as session:
        session.add_all(Account(scope=project, day=day, tokens=1000) for day in days)
    await limit(database, Project, project, max_tokens=1000 * counted + 1999, period=period)
    await ledger.reserve(call(project, task, "a"))
    said = await refused(ledger, call(project, task, "b"))
    assert (said["spent"], said["period"]) == (1000 * counted + 1000, period)


async def test_a_step_counts_once_however_often_it_is_tried(database, project, task, ledger):
    await limit(database, Task, task, max_steps=2)
    first = await ledger.reserve(call(project, task, "a"))
    await ledger.release(first)
    assert (await ledger.reserve(call(project, task, "b"))).entry_id
    for attempt in (2, 3, 4):
        again = await ledger.reserve(call(project, task, "a", attempt=attempt))
    await ledger.settle(again, TokenUsage(prompt_tokens=5))
    said = await refused(ledger, call(project, task, "c"))
    assert (said["limit"], said["spent"], said["of"]) == ("max_steps", 2, 2)
    await ledger.reserve(LedgerCall(project, "c", 1, "embedding", "m", 10, 0, task))
    await accounts_agree(database, project)


async def test_unpriced_models_and_limits_in_dollars(database, project, task):
    await limit(database, Task, task, max_cost_usd=1)
    await LedgerService(database, PRICES).reserve(call(project, task, "a", model="unknown"))
    strict = LedgerService(database, PRICES, refuse_unpriced=True)
    with pytest.raises(BudgetExhausted, match="nobody knows what the model 'unknown' costs"):
        await strict.reserve(call(project, task, "b", model="unknown"))
    await strict.reserve(call(project, task, "b"))
    await limit(database, Task, task, max_tokens=1_000_000)
    await strict.reserve(call(project, task, "c", model="unknown"))
    async with database.transaction() as session:
        entries = await session.scalars(sa.select(LedgerEntry).where(LedgerEntry.task_id == task))
        assert {entry.step_key: entry.priced for entry in entries} == {"a": False, "b": True, "c": False}


async def test_parallel_calls_of_many_tasks_never_pass_the_projects_limit(database, project, postgres_url):
    """Two gateways, 24 tasks, calls that are settled, released, repeated and left ambiguous in a random order."""
    tasks = [await make_task(database, project) for _ in range(24)]
    await limit(database, Project, project, max_tokens=40_000)
    await limit(database, Task, tasks[1], max_tokens=99)
    others = [Database(create_engine(postgres_url, pool_size=8)) for _ in range(2)]
    gateways = [LedgerService(each, PRICES) for each in others]
    chance = random.Random(7)
    refusals = []
    most = 0

    async def work(number, task):
        nonlocal most
        for step in range(12):
            gateway = chance.choice(gateways)
            wanted = call(project, task, f"{task}/{step // 2}", tokens=chance.randint(100, 900), attempt=step % 2 + 1)
            try:
                reserved = await gateway.reserve(wanted)
            except BudgetExhausted as error:
                refusals.append(error.details["level"])
                continue
            end = chance.random()
            if end < 0.6:
                await gateway.settle(reserved, TokenUsage(prompt_tokens=wanted.prompt_tokens - chance.randint(0, 99)))
            elif end < 0.8:
                await gateway.release(reserved)
            elif end < 0.9:
                await gateway.leave_ambiguous(reserved)
            if number == 0:
                most = max(most, await accounts_agree(database, project))

    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*(work(number, task) for number, task in enumerate(tasks)))
    finally:
        for each in others:
            await each.close()
    used = await accounts_agree(database, project)
    assert max(used, most) <= 40_000
    assert used > 38_000, "the limit was never tried"
    assert set(refusals) == {"project", "task"}


async def test_a_call_settles_on_the_day_it_was_reserved(database, project, task, ledger, monkeypatch):
    reserved = await ledger.reserve(call(project, task, "a"))
    tomorrow = now() + timedelta(days=1)
    monkeypatch.setattr("journeyman.platform.kit.clock.now", lambda: tomorrow)
    await ledger.settle(reserved, TokenUsage(prompt_tokens=10))
    await ledger.reserve(call(project, task, "b", tokens=5))
    async with database.transaction() as session:
        rows = await session.execute(sa.select(Account).where(Account.scope == project).order_by(Account.day))
        first, second = rows.scalars()
    assert (first.day, first.tokens, first.reserved_tokens) == (reserved.day, 10, 0)
    assert (second.day, second.tokens, second.reserved_tokens) == (tomorrow.date(), 0, 5)
    assert isinstance(first.day, date)
