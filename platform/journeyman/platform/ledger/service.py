"""The ledger: who called which model, what was promised before, and what it cost after.

A call is *reserved* before it is sent and then ends in exactly one of three ways: *settled* (with the engine's own
count, or ``estimated`` where a caller hung up or an engine does not count), *released* (the engine refused it, nothing
is billed), or *ambiguous* (a crash hid whether it was billed). An ambiguous entry stays visible and holds its
reservation against the budget, until the call's true end becomes known after all.
"""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from journeyman.platform.kit import clock
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import BudgetExhausted, Conflict, NotFound, Unavailable
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.metrics import UNPRICED_CALLS
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.ledger.limits import EPOCH, number
from journeyman.platform.ledger.models import LedgerEntry
from journeyman.platform.ledger.pricing import PriceTable
from journeyman.platform.ledger.repository import LedgerRepository, Refusal
from journeyman.platform.ledger.usage import TokenUsage, UsageTotals, totals

ABANDONED_AFTER: Final = timedelta(hours=2)
"""Older reservations belong to a gateway that died: no call lasts as long."""
ANSWERS_KEPT: Final = timedelta(hours=6)
"""How long an answer waits for a caller who did not store it."""
MAX_KEPT: Final = 16 * 1024 * 1024
"""Bytes of an answer that are kept; of a larger one a repeated call is made again."""
MAX_REPLAYS: Final = 5
"""A caller who comes back more often does not understand the answer: it is asked for anew."""

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
    digest: str | None = None
    """SHA-256 of the request, for calls whose answer is kept until the caller has stored it."""

    @property
    def conversation(self) -> str:
        """Under what its answer is kept: the next answer to the same thread takes its place."""
        return self.thread_id or self.step_key


@dataclass(frozen=True, slots=True)
class Reservation:
    entry_id: str
    request_id: str
    call: LedgerCall
    day: date
    """On whose project account it is."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as the engine sent it."""

    content_type: str
    body: bytes


class LedgerService:
    """Each method that writes does so in one statement. A database that does not answer is :class:`Unavailable`.

    ``refuse_unpriced``: no call of a model without a price while a limit in dollars applies to it.
    """

    def __init__(self, database: Database, prices: PriceTable, *, refuse_unpriced: bool = False) -> None:
        self._database = database
        self._prices = prices
        self._refuse_unpriced = refuse_unpriced
        self._live: set[str] = set()

    async def reserve(self, call: LedgerCall) -> Reservation | Answer:
        """Promise the call's estimated tokens and cost to it, at every level of the budget tree.

        Open reservations of the step's earlier attempts become ambiguous. An attempt number that was used before is
        replaced by the next free one, so that a step which is scheduled afresh is not stopped by its own past. A step
        whose very request was answered and paid before is answered with that: nothing is reserved.

        Raises :class:`BudgetExhausted` (with ``level``, ``limit``, ``spent``, ``requested``, ``of``, ``period`` and ``since``),
        :class:`NotFound` for a task that the project does not have, :class:`Conflict` (retryable) while the very
        same attempt is still running.
        """
        moment = clock.now()
        values = self._values(call, moment)
        async with self._ledger() as ledger:
            reserved = await ledger.reserve(values)
            if isinstance(reserved, Refusal) and reserved.name == "missing":
                if not await ledger.open_accounts(call.project_id, call.task_id, moment.date()):
                    raise NotFound(f"This project has no task {call.task_id}.", code="task_not_found")
                reserved = await ledger.reserve(values)
            if reserved is None:
                values |= _numbered(call, await self._next_attempt(ledger, call))
                reserved = await ledger.reserve(values)
            if isinstance(reserved, Refusal) and reserved.name == "stored":
                answer = await self._stored(ledger, call)
                if answer is not None:
                    return answer
                reserved = await ledger.reserve({**values, "request_digest": None})
        if isinstance(reserved, Refusal):
            raise _exhausted(reserved, call.model)
        if reserved is None:
            raise _in_flight(call)
        if not values["priced"]:
            UNPRICED_CALLS.labels(call.kind).inc()
        self._live.add(values["request_id"])
        return Reservation(reserved, values["request_id"], call, moment.date())

    async def settle(
        self,
        reservation: Reservation,
        usage: TokenUsage,
        *,
        estimated: bool = False,
        seconds: float = 0.0,
        answer: Answer | None = None,
    ) -> bool:
        """Write down what the call used. False when it had been closed before; nothing is changed then.

        The ``answer`` is kept for ``ANSWERS_KEPT``, or until the conversation's next one.
        """
        cost = self._prices.cost(reservation.call.model, usage)
        closing = _closing("settled", usage, cost, estimated=estimated, seconds=seconds)
        return await self._close(reservation, closing, answer)

    async def release(self, reservation: Reservation) -> bool:
        """The engine did not take the call: it costs nothing."""
        return await self._close(reservation, _closing("released"))

    async def leave_ambiguous(self, reservation: Reservation) -> bool:
        """The engine may have answered, and billed, a call whose answer never arrived."""
        return await self._close(reservation, {**_closing("ambiguous"), "settled_at": None})

    async def mark_abandoned(self) -> int:
        """Make reservations ambiguous that a dead gateway left behind. Returns how many."""
        async with self._ledger() as ledger:
            return await ledger.mark_abandoned(clock.now() - ABANDONED_AFTER)

    async def drop_answers(self) -> int:
        """Drop stored answers that nobody came back for. Returns how many."""
        async with self._ledger() as ledger:
            return await ledger.drop_answers(clock.now())

    async def usage_of_task(self, task_id: str) -> UsageTotals:
        """The caller has made sure that the task belongs to the project that asks."""
        async with self._ledger() as ledger:
            return totals(await ledger.totals(LedgerEntry.task_id == task_id))

    async def usage_of_project(self, project_id: str) -> UsageTotals:
        """Ever, over all of its tasks."""
        async with self._ledger() as ledger:
            return totals(await ledger.totals(LedgerEntry.project_id == project_id))

    async def ambiguous_entries(self) -> int:
        """How many entries of all projects are ambiguous."""
        async with self._ledger() as ledger:
            return await ledger.count_ambiguous()

    def _values(self, call: LedgerCall, moment: datetime) -> dict[str, Any]:
        estimate = TokenUsage(prompt_tokens=call.prompt_tokens, completion_tokens=call.max_completion_tokens)
        return {
            **_numbered(call, call.attempt),
            "project_id": call.project_id,
            "task_id": call.task_id,
            "thread_id": call.thread_id,
            "step_key": call.step_key,
            "request_digest": call.digest,
            "conversation": call.conversation,
            "max_replays": MAX_REPLAYS,
            "kind": call.kind,
            "model": call.model,
            "priced": self._prices.price_of(call.model) is not None,
            "refuse_unpriced": self._refuse_unpriced,
            "tokens": call.prompt_tokens + call.max_completion_tokens,
            "cost": self._prices.cost(call.model, estimate),
            "day": moment.date(),
            "time": moment,
        }

    async def _stored(self, ledger: LedgerRepository, call: LedgerCall) -> Answer | None:
        assert call.digest is not None
        found = await ledger.replay(call.project_id, call.conversation, call.step_key, call.digest)
        return None if found is None else Answer(found.content_type, zlib.decompress(found.body))

    async def _next_attempt(self, ledger: LedgerRepository, call: LedgerCall) -> int:
        """The number for an attempt whose own number is taken."""
        earlier = dict(await ledger.attempts_of(call.project_id, call.step_key))
        running = _request_id(call.project_id, call.step_key, call.attempt) in self._live
        if running and earlier.get(call.attempt) == "reserved":
            raise _in_flight(call)
        return max(earlier, default=call.attempt) + 1

    async def _close(self, reservation: Reservation, closing: dict[str, Any], answer: Answer | None = None) -> bool:
        call = reservation.call
        values = {
            **closing,
            "id": reservation.entry_id,
            "project_id": call.project_id,
            "task_id": call.task_id,
            "day": reservation.day,
        }
        kept: dict[str, Any] | None = None
        if answer is not None and call.digest is not None and len(answer.body) <= MAX_KEPT:
            kept = {
                "conversation": call.conversation,
                "step_key": call.step_key,
                "request_digest": call.digest,
                "content_type": answer.content_type,
                "body": zlib.compress(answer.body, 1),
                "expires_at": clock.now() + ANSWERS_KEPT,
            }
        async with self._ledger() as ledger:
            closed = await ledger.close(values, kept)
        self._live.discard(reservation.request_id)
        return closed

    @asynccontextmanager
    async def _ledger(self) -> AsyncIterator[LedgerRepository]:
        try:
            async with self._database.connection() as connection:
                yield LedgerRepository(connection)
        except (InterfaceError, OperationalError, PoolTimeout, OSError) as error:
            raise _database_down() from error
        except DBAPIError as error:
            if error.connection_invalidated or database_unavailable(error):
                raise _database_down() from error
            raise


def _exhausted(refusal: Refusal, model: str) -> BudgetExhausted:
    whose = {"task": "The task's", "project": "The project's"}[refusal.level]
    period = {"day": " a day", "month": " a month"}.get(refusal.period or "", "") if refusal.level == "project" else ""
    maximum, spent, asked = refusal.maximum, refusal.spent, refusal.requested
    limit = refusal.name
    match refusal.name:
        case "max_tokens":
            said = (
                f"{whose} budget of {maximum:f} tokens{period} does not allow this call: {spent:f} are used or "
                f"reserved, and the call may need {asked:f}. Raise the budget's max_tokens to go on."
            )
        case "max_cost_usd":
            said = (
                f"{whose} budget of ${maximum:f}{period} does not allow this call: ${spent:.4f} are spent or "
                f"reserved, and the call may cost ${asked:.4f}. Raise the budget's max_cost_usd to go on."
            )
        case "max_steps":
            said = f"{whose} budget of {maximum:f} steps{period} is used up. Raise the budget's max_steps to go on."
        case _:
            limit = "max_cost_usd"
            said = (
                f"{whose} budget has a limit in dollars, and nobody knows what the model {model!r} costs. Give it a "
                "price in the file that JOURNEYMAN_MODEL_PRICES names, or take the limit max_cost_usd away."
            )
    return BudgetExhausted(
        said,
        level=refusal.level,
        limit=limit,
        spent=number(spent),
        requested=number(asked),
        of=number(maximum),
        **_period(refusal),
    )


def _period(refusal: Refusal) -> dict[str, Any]:
    if refusal.level == "project" and refusal.since is not None:
        return {"period": refusal.period or "total", "since": refusal.since.isoformat()}
    return {"period": "total", "since": EPOCH.isoformat()}


def _request_id(project_id: str, step_key: str, attempt: int) -> str:
    # Callers with a project's key choose their own step keys: the project keeps them apart.
    return f"{project_id}/{step_key}/{attempt}"


def _numbered(call: LedgerCall, attempt: int) -> dict[str, Any]:
    request_id = _request_id(call.project_id, call.step_key, attempt)
    return {"id": derived_id("ledger_entry", request_id), "request_id": request_id, "attempt": attempt}


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
        "cost": cost,
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
