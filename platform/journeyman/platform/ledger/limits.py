"""How one level of the budget tree stands: its limits, and what is used of them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

from journeyman.platform.kit.database import Json

WARN_SHARE: Final = Decimal("0.8")
"""Share of a limit at which a warning is due: early enough to raise it before the task pauses."""

LIMITS: Final = ("max_tokens", "max_cost_usd", "max_wall_s", "max_steps")
"""The limits of a budget, in the order in which they are reported."""

EPOCH: Final = date(1970, 1, 1)

Level = Literal["task", "project"]
Period = Literal["day", "month", "total"]


@dataclass(frozen=True, slots=True)
class Standing:
    """``spent`` has an entry for each limit there can be, whether it is set or not; what calls in flight may yet cost
    is in ``reserved`` and not in ``spent``.
    """

    level: Level
    scope: str
    budget: Json
    spent: dict[str, Decimal]
    reserved: dict[str, Decimal] = field(default_factory=dict)
    since: date = EPOCH

    @property
    def period(self) -> Period:
        """Over what the limits count; a task's budget is always for good."""
        return self.budget.get("period") or "total" if self.level == "project" else "total"

    @property
    def ends(self) -> datetime | None:
        """When the period is over and counting begins anew, UTC."""
        return period_end(self.period, self.since)

    def limits(self) -> Iterator[tuple[str, Decimal]]:
        for name in LIMITS:
            limit = self.budget.get(name)
            if limit is not None:
                yield name, Decimal(str(limit))

    def used(self, share: Decimal = Decimal(1)) -> Iterator[dict[str, Any]]:
        """The limits of which at least this share is spent, as an event tells of them."""
        for name, limit in self.limits():
            if self.spent[name] >= limit * share:
                yield {
                    "level": self.level,
                    "limit": name,
                    "spent": number(self.spent[name]),
                    "of": number(limit),
                    "period": self.period,
                    "since": self.since.isoformat(),
                }


def period_start(period: str, today: date) -> date:
    """The first day of the period that ``today`` is in."""
    return {"day": today, "month": today.replace(day=1)}.get(period, EPOCH)


def period_end(period: str, since: date) -> datetime | None:
    """The moment after the period that began then."""
    match period:
        case "day":
            after = since + timedelta(days=1)
        case "month":
            after = (since.replace(day=1) + timedelta(days=32)).replace(day=1)
        case _:
            return None
    return datetime(after.year, after.month, after.day, tzinfo=UTC)


def number(value: Decimal) -> int | float:
    """As JSON shows it."""
    return int(value) if value == value.to_integral_value() else float(value)
