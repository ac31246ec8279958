"""What was used, summed up from the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import sqlalchemy as sa


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one model did. ``cost_usd`` and the tokens are those of settled calls."""

    model: str
    calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_usd: Decimal
    unpriced_calls: int
    """Calls that no price was known for: they cost something, or nothing, and the ledger does not know."""


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


def totals(rows: Sequence[sa.RowMapping]) -> UsageTotals:
    """``rows``: those of :meth:`.LedgerRepository.totals`, one a kind, model and state."""
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
                unpriced_calls=row["unpriced"],
            )
            for row in settled
        ),
    )
