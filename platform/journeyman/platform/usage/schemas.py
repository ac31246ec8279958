"""Usage as the API shows it."""

from collections.abc import Sequence

from pydantic import BaseModel

from journeyman.platform.budgets.schemas import BudgetView
from journeyman.platform.kit.database import Json
from journeyman.platform.ledger.usage import UsageTotals


class ModelUsageView(BaseModel):
    """What one model did, in settled calls."""

    model: str
    calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_usd: str
    price_known: bool
    """False when no price matched the model: its cost of 0 then means that nobody knows it."""


class OpenUsage(BaseModel):
    """Calls that are not settled: their tokens and cost are what was promised to them."""

    calls: int
    tokens: int
    cost_usd: str


class InheritedUsage(BaseModel):
    """What the task that a fork was made from had spent up to the checkpoint, and those before it."""

    tokens: int
    cost_usd: str
    steps: int
    wall_s: int


class UsageView(BaseModel):
    """Settled use. Amounts of money are decimal strings. ``ambiguous``: a crash hid whether the call was billed."""

    calls: int
    estimated_calls: int
    """Of ``calls``, those whose engine did not say what it used."""
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    """Of ``prompt_tokens``, those that the engine had in its prefix cache."""
    completion_tokens: int
    cost_usd: str
    sandbox_seconds: float
    reserved: OpenUsage
    ambiguous: OpenUsage
    price_known: bool
    """False when ``cost_usd`` leaves out calls of models without a price; ``models`` says which."""
    models: list[ModelUsageView]
    inherited: InheritedUsage | None
    """Of a fork: what was spent before it. It is not part of the numbers above, and counts against the fork's limits."""
    budgets: list[BudgetView]
    """Spent and limits at each level: of the task, if it is one's usage, and of the project."""

    @classmethod
    def of(cls, totals: UsageTotals, budgets: Sequence[BudgetView], inherited: Json | None = None) -> "UsageView":
        return cls(
            price_known=not any(each.unpriced_calls for each in totals.by_model),
            inherited=InheritedUsage.model_validate(inherited) if inherited else None,
            budgets=list(budgets),
            calls=totals.calls,
            estimated_calls=totals.estimated_calls,
            tokens=totals.prompt_tokens + totals.completion_tokens,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            completion_tokens=totals.completion_tokens,
            cost_usd=f"{totals.cost_usd:f}",
            sandbox_seconds=float(totals.sandbox_seconds),
            reserved=OpenUsage(
                calls=totals.reserved_calls,
                tokens=totals.reserved_tokens,
                cost_usd=f"{totals.reserved_cost_usd:f}",
            ),
            ambiguous=OpenUsage(
                calls=totals.ambiguous_calls,
                tokens=totals.ambiguous_tokens,
                cost_usd=f"{totals.ambiguous_cost_usd:f}",
            ),
            models=[
                ModelUsageView(
                    model=each.model,
                    calls=each.calls,
                    prompt_tokens=each.prompt_tokens,
                    cached_tokens=each.cached_tokens,
                    completion_tokens=each.completion_tokens,
                    cost_usd=f"{each.cost_usd:f}",
                    price_known=each.unpriced_calls == 0,
                )
                for each in totals.by_model
            ],
        )
