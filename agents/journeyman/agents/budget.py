"""The limits of a task, as an agent is told of them. Counting is the platform's: see its ``budgets`` and its ledger."""

from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """The most that may be used; ``None`` is no limit. ``steps`` are model calls. Money is in US dollars."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int | None = Field(default=None, ge=0)
    cost_usd: Decimal | None = Field(default=None, ge=0)
    wall_time_s: int | None = Field(default=None, ge=0)
    steps: int | None = Field(default=None, ge=0)

    def described(self) -> str:
        """The limits for a reader, for example ``2,000,000 tokens, 5.00 US dollars``; empty when there is none."""
        texts = (
            (self.tokens, f"{self.tokens:,} tokens" if self.tokens is not None else ""),
            (self.cost_usd, f"{self.cost_usd:.2f} US dollars" if self.cost_usd is not None else ""),
            (self.wall_time_s, f"{self.wall_time_s:,} s" if self.wall_time_s is not None else ""),
            (self.steps, f"{self.steps:,} steps" if self.steps is not None else ""),
        )
        return ", ".join(text for value, text in texts if value is not None)
