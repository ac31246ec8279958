"""The ledger: who called which model, what was promised before, and what it cost after.

A call is *reserved* before it is sent and then ends in exactly one of three ways: *settled* (with the engine's own
count, or ``estimated`` where a caller hung up or an engine does not count), *released* (the engine refused it, nothing
is billed), or *ambiguous* (a crash hid whether it was billed). An ambiguous entry stays visible and holds its
reservation against the budget, until the call's true end becomes known after all.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from journeyman.platform.inference.models import LedgerEntry
from journeyman.platform.inference.port import TokenUsage
from journeyman.platform.inference.pricing import PriceTable
from journeyman.platform.inference.repository import Committed, LedgerRepository
from journeyman.platform.kit import clock
from journeyman.platform.kit.database import Database, Json
from journeyman.platform.kit.errors import BudgetExhausted, Conflict, NotFound, Unavailable
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.outages import database_unavailable

ABANDONED_AFTER: Final = timedelta(hours=2)
"""Older reservations belong to a gateway that died: no call lasts as long."""

_NOTHING: Final = TokenUsage()

Kind = Literal["model", "embedding"]


@dataclass(frozen=True, slots=True)
class LedgerCall:
    """A call about to be made. ``step_key`` is equal for all attempts of a step, ``attempt`` counts them from 1."""

    project_id: str
    step_key: str
    attempt: int
    kind: Kind
    model: str
    prompt_tokens: int
    """Estimate."""
    max_completion_tokens: int
    task_id: str | None = None
    thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    entry_id: str
    request_id: str
    call: LedgerCall


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one model did. ``cost_usd`` and the tokens are those of settled calls."""

    model: str
    calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_usd: Decimal


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Settled use; what is open or ambiguous is told apart and is not part of it."""

    calls: int = 0
    estimated_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    sandbox_seconds: Decimal = Decimal(0)
    reserved_calls: int = 0
    reserved_tokens: int = 0
    reserved_cost_usd: Decimal = Decimal(0)
    ambiguous_calls: int = 0
    ambiguous_tokens: int = 0
    ambiguous_cost_usd: Decimal = Decimal(0)
    by_model: tuple[ModelUsage, ...] = field(default=())


class LedgerService:
    """Each method is one transaction. A database that does not answer is :class:`Unavailable`."""

    def __init__(self, database: Database, prices: PriceTable) -> None:
        self._database = database
        self._prices = prices
        self._live: set[str] = set()

    async def reserve(self, call: LedgerCall) -> Reservation:
        """Promise the call's estimated tokens and cost to it.

        Open reservations of the step's earlier attempts become ambiguous. An attempt number that was used before is
        replaced by the next free one, so that a step which is scheduled afresh is not stopped by its own past.

        Raises :class:`BudgetExhausted` (with ``limit``, ``spent``, ``reserved``, ``requested``, ``maximum``),
        :class:`NotFound` for a task that the project does not have, :class:`Conflict` (retryable) while the very
        same attempt is still running.
        """
        estimate = TokenUsage(prompt_tokens=call.prompt_tokens, completion_tokens=call.max_completion_tokens)
        tokens = call.prompt_tokens + call.max_completion_tokens
        cost = self._prices.cost(call.model, estimate)
        async with self._transaction() as ledger:
            if call.task_id is not None:
                budget = await ledger.lock_budget(call.project_id, call.task_id)
                if budget is None:
                    raise NotFound(f"This project has no task {call.task_id}.", code="task_not_found")
                if budget.get("max_tokens") is not None or budget.get("max_cost_usd") is not None:
                    _check_budget(budget, await ledger.committed(call.task_id), tokens, cost)
            promised = {"state": "reserved", "reserved_tokens": tokens, "reserved_cost_usd": cost}
            entry = {**_entry(call, call.attempt), **promised}
            if not await ledger.insert(entry):
                entry = {**_entry(call, await self._next_attempt(ledger, call)), **promised}
                if not await ledger.insert(entry):
                    raise _in_flight(call)
        self._live.add(entry["request_id"])
        return Reservation(entry["id"], entry["request_id"], call)

    async def settle(
        self, reservation: Reservation, usage: TokenUsage, *, estimated: bool = False, seconds: float = 0.0
    ) -> bool:
        """Write down what the call used. False when it had been closed before; nothing is changed then."""
        cost = self._prices.cost(reservation.call.model, usage)
        return await self._close(reservation, _closing("settled", usage, cost, estimated=estimated, seconds=seconds))

    async def release(self, reservation: Reservation) -> bool:
        """The engine did not take the call: it costs nothing."""
        return await self._close(reservation, _closing("released"))

    async def leave_ambiguous(self, reservation: Reservation) -> bool:
        """The engine may have answered, and billed, a call whose answer never arrived."""
        return await self._close(reservation, {**_closing("ambiguous"), "settled_at": None})

    async def mark_abandoned(self) -> int:
        """Make reservations ambiguous that a dead gateway left behind. Returns how many."""
        async with self._transaction() as ledger:
            return await ledger.mark_abandoned(clock.now() - ABANDONED_AFTER)

    async def usage_of_task(self, task_id: str) -> UsageTotals:
        """The caller has made sure that the task belongs to the project that asks."""
        async with self._transaction() as ledger:
            return _totals(await ledger.totals(LedgerEntry.task_id == task_id))

    async def usage_of_project(self, project_id: str) -> UsageTotals:
        async with self._transaction() as ledger:
            return _totals(await ledger.totals(LedgerEntry.project_id == project_id))

    async def _next_attempt(self, ledger: LedgerRepository, call: LedgerCall) -> int:
        """The number for an attempt whose own number is taken."""
        earlier = dict(await ledger.attempts_of(call.project_id, call.step_key))
        running = _request_id(call.project_id, call.step_key, call.attempt) in self._live
        if running and earlier.get(call.attempt) == "reserved":
            raise _in_flight(call)
        return max(earlier, default=call.attempt) + 1

    async def _close(self, reservation: Reservation, values: dict[str, Any]) -> bool:
        async with self._transaction() as ledger:
            closed = await ledger.close(reservation.entry_id, values)
        self._live.discard(reservation.request_id)
        return closed

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[LedgerRepository]:
        try:
            async with self._database.transaction() as session:
                yield LedgerRepository(session)
        except (InterfaceError, OperationalError, PoolTimeout, OSError) as error:
            raise _database_down() from error
        except DBAPIError as error:
            if error.connection_invalidated or database_unavailable(error):
                raise _database_down() from error
            raise


def _check_budget(budget: Json, committed: Committed, tokens: int, cost: Decimal) -> None:
    max_tokens = budget.get("max_tokens")
    if max_tokens is not None and committed.tokens + tokens > int(max_tokens):
        raise BudgetExhausted(
            f"The task's budget of {max_tokens} tokens does not allow this call: {committed.tokens} are used or "
            f"reserved, and the call may need {tokens}. Raise the budget's max_tokens to go on.",
            limit="max_tokens",
            maximum=int(max_tokens),
            spent=committed.tokens,
            requested=tokens,
        )
    max_cost = budget.get("max_cost_usd")
    # A call without a price cannot make it worse, and is not stopped by a budget that money has used up.
    if max_cost is not None and cost > 0 and committed.cost_usd + cost > Decimal(str(max_cost)):
        raise BudgetExhausted(
            f"The task's budget of ${max_cost} does not allow this call: ${committed.cost_usd:.4f} are spent or "
            f"reserved, and the call may cost ${cost:.4f}. Raise the budget's max_cost_usd to go on.",
            limit="max_cost_usd",
            maximum=float(max_cost),
            spent=float(committed.cost_usd),
            requested=float(cost),
        )


def _request_id(project_id: str, step_key: str, attempt: int) -> str:
    # Callers with a project's key choose their own step keys: the project keeps them apart.
    return f"{project_id}/{step_key}/{attempt}"


def _entry(call: LedgerCall, attempt: int) -> dict[str, Any]:
    request_id = _request_id(call.project_id, call.step_key, attempt)
    return {
        "id": derived_id("ledger_entry", request_id),
        "project_id": call.project_id,
        "task_id": call.task_id,
        "thread_id": call.thread_id,
        "request_id": request_id,
        "step_key": call.step_key,
        "attempt": attempt,
        "kind": call.kind,
        "model": call.model,
        "estimated": False,
        "reserved_tokens": 0,
        "reserved_cost_usd": Decimal(0),
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "cost_usd": Decimal(0),
        "seconds": Decimal(0),
        "created_at": clock.now(),
        "settled_at": None,
    }


def _closing(
    state: str,
    usage: TokenUsage = _NOTHING,
    cost: Decimal = Decimal(0),
    *,
    estimated: bool = False,
    seconds: float = 0.0,
) -> dict[str, Any]:
    return {
        "state": state,
        "estimated": estimated,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost_usd": cost,
        "seconds": Decimal(f"{seconds:.3f}"),
        "settled_at": clock.now(),
    }


def _in_flight(call: LedgerCall) -> Conflict:
    return Conflict(
        f"Attempt {call.attempt} of request {call.step_key} is still running; it is not paid for twice.",
        code="request_in_flight",
        retryable=True,
    )


def _database_down() -> Unavailable:
    return Unavailable(
        "The ledger's database does not answer. No call passes without being written down, so this one must be "
        "repeated later.",
        code="ledger_unavailable",
    )


def _totals(rows: Sequence[sa.RowMapping]) -> UsageTotals:
    settled = [row for row in rows if row["state"] == "settled" and row["kind"] != "sandbox"]
    reserved = [row for row in rows if row["state"] == "reserved"]
    ambiguous = [row for row in rows if row["state"] == "ambiguous"]

    def total(chosen: Sequence[sa.RowMapping], column: str) -> int:
        return int(sum(row[column] for row in chosen))

    def money(chosen: Sequence[sa.RowMapping], column: str) -> Decimal:
        return sum((row[column] for row in chosen), Decimal(0))

    return UsageTotals(
        calls=total(settled, "entries"),
        estimated_calls=total(settled, "estimated"),
        prompt_tokens=total(settled, "prompt_tokens"),
        cached_tokens=total(settled, "cached_tokens"),
        completion_tokens=total(settled, "completion_tokens"),
        cost_usd=money(settled, "cost_usd"),
        sandbox_seconds=money([row for row in rows if row["kind"] == "sandbox"], "seconds"),
        reserved_calls=total(reserved, "entries"),
        reserved_tokens=total(reserved, "reserved_tokens"),
        reserved_cost_usd=money(reserved, "reserved_cost_usd"),
        ambiguous_calls=total(ambiguous, "entries"),
        ambiguous_tokens=total(ambiguous, "reserved_tokens"),
        ambiguous_cost_usd=money(ambiguous, "reserved_cost_usd"),
        by_model=tuple(
            ModelUsage(
                model=row["model"] or "",
                calls=row["entries"],
                prompt_tokens=int(row["prompt_tokens"]),
                cached_tokens=int(row["cached_tokens"]),
                completion_tokens=int(row["completion_tokens"]),
                cost_usd=row["cost_usd"],
            )
            for row in settled
        ),
    )
