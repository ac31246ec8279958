"""SQL of the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.ids import new_id
from journeyman.platform.ledger import statements
from journeyman.platform.ledger.models import LedgerEntry, StoredAnswer
from journeyman.platform.tasks.models import Task


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a reservation was not made. ``level`` is ``task`` or ``project``, or what else was in its way."""

    level: str
    name: str
    spent: Decimal
    requested: Decimal
    maximum: Decimal
    period: str | None
    """Of a project's budget; None means for good."""
    since: date | None
    """Its first day."""


@dataclass(frozen=True, slots=True)
class StoredBody:
    """An answer as it is kept: ``body`` is deflated."""

    content_type: str
    body: bytes


class LedgerRepository:
    """Each method is a statement of its own, committed with it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def reserve(self, values: dict[str, Any]) -> str | Refusal | None:
        """The id of the new entry, what refuses it, or None when the request id was used before.

        The step's other open reservations become ambiguous. Concurrent reservations, of any number of tasks and
        gateways, never pass a limit together.
        """
        row = (await self._connection.execute(statements.RESERVE, values)).one()
        if row.name is not None:
            return Refusal(row.level, row.name, row.spent, row.requested, row.maximum, row.period, row.since)
        entry_id: str | None = row.id
        return entry_id

    async def open_accounts(self, project_id: str, task_id: str | None, day: date) -> bool:
        """Make the accounts that a reservation needs. False when the project has no such task."""
        await self._connection.execute(
            statements.OPEN_ACCOUNTS, {"project_id": project_id, "task_id": task_id, "day": day}
        )
        if task_id is None:
            return True
        found = sa.select(Task.id).where(Task.id == task_id, Task.project_id == project_id)
        return (await self._connection.execute(found)).first() is not None

    async def attempts_of(self, project_id: str, step_key: str) -> list[tuple[int, str]]:
        """``(attempt, state)`` of all attempts of a step."""
        query = sa.select(LedgerEntry.attempt, LedgerEntry.state).where(
            LedgerEntry.project_id == project_id, LedgerEntry.step_key == step_key
        )
        return [(row.attempt, row.state) for row in await self._connection.execute(query)]

    async def close(self, values: dict[str, Any], answer: dict[str, Any] | None = None) -> bool:
        """End an open entry and keep its answer, if one is given. False when it was ended before."""
        if answer is None:
            closed = await self._connection.execute(statements.CLOSE, values)
        else:
            closed = await self._connection.execute(statements.CLOSE_WITH_ANSWER, {**values, **answer})
        return closed.first() is not None

    async def replay(self, project_id: str, conversation: str, step_key: str, digest: str) -> StoredBody | None:
        """The stored answer to a step, counted as given once more."""
        row = (
            await self._connection.execute(
                statements.REPLAY,
                {
                    "project_id": project_id,
                    "conversation": conversation,
                    "step_key": step_key,
                    "request_digest": digest,
                },
            )
        ).first()
        return None if row is None else StoredBody(row.content_type, row.body)

    async def mark_abandoned(self, before: datetime) -> int:
        """Turn reservations made before the given time into ambiguous entries; returns how many."""
        query = (
            sa.update(LedgerEntry)
            .where(LedgerEntry.state == "reserved", LedgerEntry.created_at < before)
            .values(state="ambiguous")
            .returning(LedgerEntry.id)
        )
        return len((await self._connection.execute(query)).all())

    async def drop_answers(self, before: datetime) -> int:
        """Drop the stored answers that expired before the given time; returns how many."""
        query = sa.delete(StoredAnswer).where(StoredAnswer.expires_at < before)
        return (await self._connection.execute(query)).rowcount

    async def count_ambiguous(self) -> int:
        """How many entries of all projects are ambiguous."""
        query = sa.select(sa.func.count()).select_from(LedgerEntry).where(LedgerEntry.state == "ambiguous")
        return (await self._connection.execute(query)).scalar_one()

    async def totals(self, *conditions: sa.ColumnElement[bool]) -> Sequence[sa.RowMapping]:
        """One row a kind, model and state."""
        query = (
            sa.select(
                LedgerEntry.kind,
                LedgerEntry.model,
                LedgerEntry.state,
                sa.func.count().label("entries"),
                sa.func.count().filter(sa.not_(LedgerEntry.priced)).label("unpriced"),
                sa.func.count().filter(LedgerEntry.estimated).label("estimated"),
                sa.func.sum(LedgerEntry.reserved_tokens).label("reserved_tokens"),
                sa.func.sum(LedgerEntry.reserved_cost_usd).label("reserved_cost_usd"),
                sa.func.sum(LedgerEntry.prompt_tokens).label("prompt_tokens"),
                sa.func.sum(LedgerEntry.cached_tokens).label("cached_tokens"),
                sa.func.sum(LedgerEntry.completion_tokens).label("completion_tokens"),
                sa.func.sum(LedgerEntry.cost_usd).label("cost_usd"),
                sa.func.sum(LedgerEntry.seconds).label("seconds"),
            )
            .where(*conditions)
            .group_by(LedgerEntry.kind, LedgerEntry.model, LedgerEntry.state)
            .order_by(LedgerEntry.kind, LedgerEntry.model, LedgerEntry.state)
        )
        return (await self._connection.execute(query)).mappings().all()


async def charge_sandbox(
    session: AsyncSession,
    sandbox_id: str,
    *,
    project_id: str,
    task_id: str,
    thread_id: str | None,
    seconds: float,
) -> None:
    """Write down how long a sandbox was there, when it has ended. Raises ``IntegrityError`` for one that was written down."""
    moment = now()
    session.add(
        LedgerEntry(
            id=new_id("ledger_entry"),
            project_id=project_id,
            task_id=task_id,
            thread_id=thread_id,
            request_id=sandbox_id,
            step_key=sandbox_id,
            attempt=1,
            kind="sandbox",
            model=None,
            state="settled",
            estimated=False,
            reserved_tokens=0,
            reserved_cost_usd=Decimal(0),
            prompt_tokens=0,
            cached_tokens=0,
            completion_tokens=0,
            cost_usd=Decimal(0),
            seconds=Decimal(str(round(seconds, 3))),
            created_at=moment,
            settled_at=moment,
        )
    )
