"""What a reservation costs: one call after another, and the calls of fifty tasks of one project at once.

Every call locks the row of its project's account until PostgreSQL has written the commit to disk: the most that one project
can do in a second is bounded by that.
"""

import asyncio
import sys
import time

import sqlalchemy as sa

from benchmarks.database import empty_database
from benchmarks.results import Row, percentile, report
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.ids import new_id
from journeyman.platform.ledger.pricing import PriceTable
from journeyman.platform.ledger.service import Answer, LedgerCall, LedgerService
from journeyman.platform.ledger.usage import TokenUsage

TASKS = 50
CALLS = 20
SINGLE = 300

_NEW_TASK = sa.text(
    """
    INSERT INTO tasks (id, project_id, title, instruction, workspace, environment, acceptance, agent_profile, model_tier,
        models, budget, approval_policy, labels, state, waiting_for, plan_revision, last_seq, message_count, epoch,
        inherited, trace_context, worked_s, created_at, updated_at)
    VALUES (:id, :project, 't', 't', '{}', '{}', '[]', 'default', 'standard', '{}', :budget, '{}', '{}', 'running', '[]',
        0, 0, 0, 0, '{}', '{}', 0, now(), now())
    """
).bindparams(sa.bindparam("budget", type_=sa.JSON))


async def _make(database: Database, tasks: int) -> tuple[str, list[str]]:
    organization, project = new_id("organization"), new_id("project")
    ids = [new_id("task") for _ in range(tasks)]
    async with database.transaction() as session:
        await session.execute(sa.text("INSERT INTO organizations (id, name) VALUES (:id, 'o')"), {"id": organization})
        await session.execute(
            sa.text(
                "INSERT INTO projects (id, organization_id, name, budget) "
                'VALUES (:id, :organization, \'p\', \'{"max_tokens": 1000000000, "period": "month"}\')'
            ),
            {"id": project, "organization": organization},
        )
        for task in ids:
            await session.execute(_NEW_TASK, {"id": task, "project": project, "budget": {"max_tokens": 10**9}})
    return project, ids


async def measure() -> list[Row]:
    async with empty_database() as url:
        database = Database(create_engine(url, pool_size=10))
        try:
            return await _measure(database)
        finally:
            await database.close()


async def _measure(database: Database) -> list[Row]:
    ledger = LedgerService(database, PriceTable())
    answer = Answer("text/event-stream", b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n' * 300)

    async def one(project: str, task: str, step: str, *, kept: bool = False) -> tuple[float, float]:
        started = time.perf_counter()
        digest = step if kept else None
        call = LedgerCall(project, step, 1, "model", "m", 1000, 1000, task, f"{task}/thread", digest=digest)
        reserved = await ledger.reserve(call)
        assert not isinstance(reserved, Answer)
        middle = time.perf_counter()
        await ledger.settle(
            reserved, TokenUsage(prompt_tokens=900, completion_tokens=100), answer=answer if kept else None
        )
        return (middle - started) * 1000, (time.perf_counter() - middle) * 1000

    project, [task] = await _make(database, 1)
    rows: list[Row] = []
    for name, kept in (("one at a time", False), ("one at a time, answer kept", True)):
        await one(project, task, f"warm{kept}", kept=kept)
        before = time.process_time()
        times = [await one(project, task, f"{kept}/{number}", kept=kept) for number in range(SINGLE)]
        used = (time.process_time() - before) / SINGLE
        rows += [
            Row(f"ledger: {name}", "reserve p50", percentile([each[0] for each in times], 0.5), "ms"),
            Row(f"ledger: {name}", "settle p50", percentile([each[1] for each in times], 0.5), "ms"),
            Row(f"ledger: {name}", "own CPU of both", used * 1000, "ms"),
        ]
    project, tasks = await _make(database, TASKS)

    async def work(task: str) -> list[tuple[float, float]]:
        return [await one(project, task, f"{task}/{number}", kept=True) for number in range(CALLS)]

    started = time.perf_counter()
    every = [each for times in await asyncio.gather(*(work(task) for task in tasks)) for each in times]
    elapsed = time.perf_counter() - started
    name = f"ledger: {TASKS} tasks of one project"
    async with database.transaction() as session:
        total = await session.scalar(
            sa.text("SELECT sum(tokens) FROM budget_accounts WHERE scope = :scope AND day <= :day"),
            {"scope": project, "day": now().date()},
        )
    assert total == 1000 * TASKS * CALLS, total
    return [
        *rows,
        Row(name, "calls reserved and settled", len(every) / elapsed, "1/s", None),
        Row(name, "reserve p95", percentile([each[0] for each in every], 0.95), "ms"),
    ]


def main() -> int:
    report("ledger", asyncio.run(measure()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
