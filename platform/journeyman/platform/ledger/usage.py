"""Token counts of a call, and what was used, summed up from the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import sqlalchemy as sa

MAX_COUNT: Final = 1_000_000_000
"""The most tokens that one call is believed to have used."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens as the engine counted them. ``cached_tokens`` are part of the prompt, ``reasoning_tokens`` of the completion."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def from_wire(cls, usage: object) -> "TokenUsage | None":
        """From an OpenAI ``usage`` object, or one of a kind that engines send in its place. None when it cannot be meant.

        Rules: absent, null and negative counts are 0, strings of digits are numbers, details that are no objects are absent. A
        usage without any tokens, or with more than :data:`MAX_COUNT`, is None: the caller estimates. Cached tokens that are more
        than the prompt's were not counted in it (engines that report what was not cached), and are added. Reasoning tokens that
        ``total_tokens`` has beyond prompt and completion were not counted either, and are added to the completion.
        """
        if not isinstance(usage, Mapping):
            return None
        prompt_details = _details(usage, "prompt_tokens_details", "input_tokens_details")
        completion_details = _details(usage, "completion_tokens_details", "output_tokens_details")
        cached = _count(prompt_details.get("cached_tokens")) or _count(usage.get("prompt_cache_hit_tokens"))
        prompt = _count(usage.get("prompt_tokens"))
        if not prompt and "input_tokens" in usage:
            cached = cached or _count(usage.get("cache_read_input_tokens"))
            prompt = _count(usage.get("input_tokens"))
            if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
                prompt += cached + _count(usage.get("cache_creation_input_tokens"))
        elif cached > prompt:
            prompt += cached
        completion = _count(usage.get("completion_tokens")) or _count(usage.get("output_tokens"))
        reasoning = _count(completion_details.get("reasoning_tokens")) or _count(usage.get("reasoning_tokens"))
        if reasoning and _count(usage.get("total_tokens")) == prompt + completion + reasoning:
            completion += reasoning
        if not prompt + completion or max(prompt, cached, completion, reasoning) > MAX_COUNT:
            return None
        return cls(prompt, min(cached, prompt), completion, min(reasoning, completion))


def _details(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((value for name in names if isinstance(value := usage.get(name), Mapping)), {})


def _count(value: object) -> int:
    """A number of tokens; engines have been seen to send nulls, floats, strings and -1."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0
    try:
        return min(max(int(value), 0), MAX_COUNT + 1)
    except (OverflowError, ValueError):
        return 0


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
