"""SQL of the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.inference.models import LedgerEntry
from journeyman.platform.kit.database import Json
from journeyman.platform.tasks.models import Task

_OPEN: Final = ("reserved", "ambiguous")
CLOSING_COLUMNS: Final = (
    "state",
    "estimated",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "cost_usd",
    "seconds",
    "settled_at",
)

# Built once: every model call runs these, and to build them costs more than to run them.
_entries: Final = cast("sa.Table", LedgerEntry.__table__)
_stale: Final = (
    sa.update(_entries)
    .where(
        _entries.c.project_id == sa.bindparam("new_project_id", type_=sa.Text),
        _entries.c.step_key == sa.bindparam("new_step_key", type_=sa.Text),
        _entries.c.request_id != sa.bindparam("new_request_id", type_=sa.Text),
        _entries.c.state == sa.literal("reserved"),
    )
    .values(state=sa.literal("ambiguous"))
    .returning(_entries.c.id)
    .cte("stale")
)
_INSERT: Final = (
    insert(_entries)
    .values({column.name: sa.bindparam(f"new_{column.name}", type_=column.type) for column in _entries.c})
    .on_conflict_do_nothing(index_elements=[_entries.c.request_id])
    .returning(_entries.c.id)
    .add_cte(_stale)
)
_CLOSE: Final = (
    sa.update(_entries)
    .where(_entries.c.id == sa.bindparam("entry_id"), _entries.c.state.in_(_OPEN))
    .values({name: sa.bindparam(f"new_{name}", type_=_entries.c[name].type) for name in CLOSING_COLUMNS})
    .returning(_entries.c.id)
)


def _named(values: dict[str, Any]) -> dict[str, Any]:
    # A parameter with the name of a column would be taken for a value to set, in the other table's update too.
    return {f"new_{name}": value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Committed:
    """What a task has used and what is promised to calls whose end is not known yet."""

    tokens: int
    cost_usd: Decimal


class LedgerRepository:
    """Works inside the caller's transaction."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def lock_budget(self, project_id: str, task_id: str) -> Json | None:
        """The task's budget, its row locked until the transaction ends; None when the project has no such task.

        The lock does not stop others from inserting rows that refer to the task.
        """
        query = (
            sa.select(Task.budget)
            .where(Task.id == task_id, Task.project_id == project_id)
            .with_for_update(key_share=True)
        )
        return (await self._session.execute(query)).scalar_one_or_none()

    async def committed(self, task_id: str) -> Committed:
        """Settled use, plus reservations that are open or whose end a crash has hidden."""
        is_open = LedgerEntry.state.in_(_OPEN)
        used = LedgerEntry.prompt_tokens + LedgerEntry.completion_tokens
        row = (
            await self._session.execute(
                sa.select(
                    sa.func.coalesce(sa.func.sum(sa.case((is_open, LedgerEntry.reserved_tokens), else_=used)), 0),
                    sa.func.coalesce(
                        sa.func.sum(sa.case((is_open, LedgerEntry.reserved_cost_usd), else_=LedgerEntry.cost_usd)), 0
                    ),
                ).where(LedgerEntry.task_id == task_id, LedgerEntry.state != "released")
            )
        ).one()
        return Committed(int(row[0]), Decimal(row[1]))

    async def attempts_of(self, project_id: str, step_key: str) -> list[tuple[int, str]]:
        """``(attempt, state)`` of all attempts of a step."""
        query = sa.select(LedgerEntry.attempt, LedgerEntry.state).where(
            LedgerEntry.project_id == project_id, LedgerEntry.step_key == step_key
        )
        return [(row.attempt, row.state) for row in await self._session.execute(query)]

    async def mark_abandoned(self, before: datetime) -> int:
        """Turn reservations made before the given time into ambiguous entries; returns how many."""
        query = (
            sa.update(LedgerEntry)
            .where(LedgerEntry.state == "reserved", LedgerEntry.created_at < before)
            .values(state="ambiguous")
            .returning(LedgerEntry.id)
        )
        return len((await self._session.execute(query)).all())

    async def insert(self, values: dict[str, Any]) -> bool:
        """Add an entry (all columns), and make the step's other open reservations ambiguous, in one statement.

        False when an entry with that ``request_id`` exists, which is then left as it is.
        """
        return (await self._session.execute(_INSERT, _named(values))).scalar_one_or_none() is not None

    async def close(self, entry_id: str, values: dict[str, Any]) -> bool:
        """End an open entry; ``values`` are those of all ``CLOSING_COLUMNS``. False when it was ended before."""
        return (
            await self._session.execute(_CLOSE, {**_named(values), "entry_id": entry_id})
        ).scalar_one_or_none() is not None

    async def totals(self, *conditions: sa.ColumnElement[bool]) -> Sequence[sa.RowMapping]:
        """One row a kind, model and state."""
        query = (
            sa.select(
                LedgerEntry.kind,
                LedgerEntry.model,
                LedgerEntry.state,
                sa.func.count().label("entries"),
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
        return (await self._session.execute(query)).mappings().all()
