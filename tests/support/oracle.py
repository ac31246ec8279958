"""The oracle of all fault tests: what must hold of a task that has ended, whatever was killed on the way.

* The log has no gap, no call twice, no call without its one result, no step without its one answer, one end.
* Every answer was paid exactly once; what a crash left open is released, estimated or marked as ambiguous.
* What was asked for is there: the platform's own acceptance commands have seen the final workspace.
"""

import asyncio
from typing import Any

import sqlalchemy as sa

from benchmarks.endurance.machine import Machine
from benchmarks.endurance.projection import LedgerRow, Projection, project, project_ledger
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.ledger.models import LedgerEntry
from journeyman.platform.tasks.contract import TERMINAL
from support.platform import Outcome

ENDS = ("task.completed", "task.failed", "task.errored", "task.cancelled")


async def ledger_of(stack: EmbeddedStack, task_id: str) -> list[LedgerRow]:
    """The task's ledger, once no settlement is under way any more."""
    database = Database(create_engine(stack.settings.database_url, application_name="journeyman-tests"))
    try:
        async with asyncio.timeout(20):
            while True:
                async with database.transaction() as session:
                    found = await session.scalars(sa.select(LedgerEntry).where(LedgerEntry.task_id == task_id))
                    rows = [
                        LedgerRow(
                            row.kind,
                            row.step_key,
                            row.state,
                            row.estimated,
                            row.model,
                            row.prompt_tokens,
                            row.completion_tokens,
                        )
                        for row in found
                    ]
                if all(row.state != "reserved" for row in rows):
                    return rows
                await asyncio.sleep(0.1)
    finally:
        await database.close()


def check_log(events: list[dict[str, Any]], rows: list[LedgerRow]) -> Projection:
    """Raise when something was lost or doubled. Returns the projected log, for what a test wants to know beside that."""
    log = project(events)
    ends = [event["type"] for event in events if event["type"] in ENDS]
    assert len(ends) == 1, ends
    assert events[-1]["type"] in ENDS
    books = project_ledger(rows, log)
    assert not books.problems, books.problems
    return log


async def check(stack: EmbeddedStack, outcome: Outcome) -> Projection:
    """As :func:`check_log`, with the ledger of a stack in this process."""
    return check_log(outcome.events, await ledger_of(stack, outcome.task["id"]))


async def check_verified(stack: EmbeddedStack, outcome: Outcome) -> Projection:
    """The same of a task that has succeeded and is verified."""
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert outcome.task["verified"] is True
    return await check(stack, outcome)


async def check_on(machine: Machine, task_id: str, timeout_s: float = 150) -> Projection:
    """Wait for the end of a task on a machine of its own; it must be verified, and nothing lost or doubled."""
    try:
        async with asyncio.timeout(timeout_s):
            while (task := await machine.call("GET", f"/v1/tasks/{task_id}"))["state"] not in TERMINAL:
                await asyncio.sleep(0.2)
    except TimeoutError:
        events = await machine.events(task_id)
        tail = [(event["time"], event["type"], event["data"]) for event in events[-6:]]
        raise AssertionError(f"the task did not end; {len(events)} events, the last: {tail}") from None
    assert task["state"] == "succeeded", task["failure"]
    assert task["verified"] is True
    async with asyncio.timeout(20):
        rows = await machine.ledger(task_id)
        while any(row.state == "reserved" for row in rows):
            await asyncio.sleep(0.2)
            rows = await machine.ledger(task_id)
    return check_log(await machine.events(task_id), rows)
