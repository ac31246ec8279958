"""Limits of a task and the arithmetic on them. At a limit a task pauses; it is never killed.

Money is a ``Decimal`` of US dollars: sums of thousands of small amounts must equal the ledger's.
"""

from decimal import Decimal
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

WARN_SHARE: Final = Decimal("0.8")
"""Share of a limit at which a warning is due: early enough to raise it before the task pauses."""


class Dimension(StrEnum):
    """What a budget counts, in the order in which it is reported."""

    TOKENS = "tokens"
    COST = "cost_usd"
    WALL_TIME = "wall_time_s"
    STEPS = "steps"


class Spent(BaseModel):
    """What has been used. Reservations of calls in flight count as used until they are settled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int = Field(default=0, ge=0)
    cost_usd: Decimal = Field(default=Decimal(0), ge=0)
    wall_time_s: int = Field(default=0, ge=0)
    steps: int = Field(default=0, ge=0)


class Limits(BaseModel):
    """The most that may be used; ``None`` is no limit. ``steps`` are model calls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int | None = Field(default=None, ge=0)
    cost_usd: Decimal | None = Field(default=None, ge=0)
    wall_time_s: int | None = Field(default=None, ge=0)
    steps: int | None = Field(default=None, ge=0)

    def reached(self, spent: Spent) -> list[Dimension]:
        """The limits that allow nothing more. A limit of 0 is reached from the start."""
        return [name for name in Dimension if (limit := self.of(name)) is not None and _used(spent, name) >= limit]

    def near(self, spent: Spent) -> list[Dimension]:
        """The limits of which 80 % or more is used, those reached among them."""
        return [
            name
            for name in Dimension
            if (limit := self.of(name)) is not None and _used(spent, name) >= limit * WARN_SHARE
        ]

    def within(self, parent: "Limits") -> "Limits":
        """These limits, none looser than the parent's: what a part of a task may use of the whole."""
        tighter: dict[str, Decimal | None] = {}
        for name in Dimension:
            known = [limit for limit in (self.of(name), parent.of(name)) if limit is not None]
            tighter[name.value] = min(known) if known else None
        return Limits.model_validate(tighter)

    def described(self) -> str:
        """The limits for a reader, for example ``2,000,000 tokens, 5.00 US dollars``; empty when there is none."""
        texts = (
            (self.tokens, f"{self.tokens:,} tokens" if self.tokens is not None else ""),
            (self.cost_usd, f"{self.cost_usd:.2f} US dollars" if self.cost_usd is not None else ""),
            (self.wall_time_s, f"{self.wall_time_s:,} s" if self.wall_time_s is not None else ""),
            (self.steps, f"{self.steps:,} steps" if self.steps is not None else ""),
        )
        return ", ".join(text for value, text in texts if value is not None)

    def of(self, name: Dimension) -> Decimal | None:
        """The limit in one dimension."""
        value = getattr(self, name.value)
        return None if value is None else Decimal(value)


class Warned(BaseModel):
    """Which warnings were given, so that each is given once per limit; raising a limit makes its warning due again."""

    given: dict[Dimension, Decimal] = Field(default_factory=dict)

    def due(self, limits: Limits, spent: Spent) -> tuple[list[Dimension], "Warned"]:
        """The warnings to give now, and the state to keep."""
        kept = {name: limit for name, limit in self.given.items() if limits.of(name) == limit}
        new = [name for name in limits.near(spent) if name not in kept]
        for name in new:
            kept[name] = limits.of(name) or Decimal(0)
        return new, Warned(given=kept)


def _used(spent: Spent, name: Dimension) -> Decimal:
    return Decimal(getattr(spent, name.value))
