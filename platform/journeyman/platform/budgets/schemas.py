"""Budgets as the API takes them and shows them."""

from datetime import UTC, datetime, time
from typing import Annotated

from pydantic import BaseModel, Field

from journeyman.platform.budgets.warnings import BudgetWarning
from journeyman.platform.http.fields import Input
from journeyman.platform.ledger.limits import (
    LIMITS,
    Level,
    Period,
    Standing,
    number,
)


class ProjectBudget(Input):
    """Limits over all tasks of a project, at which they pause. What is left out stays as it is; null takes a limit away."""

    max_tokens: Annotated[int, Field(gt=0, le=10**15)] | None = None
    max_cost_usd: Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)] | None = None
    max_wall_s: Annotated[int, Field(gt=0, le=10**12)] | None = None
    """Seconds in which tasks worked, added over tasks."""
    max_steps: Annotated[int, Field(gt=0, le=10**12)] | None = None
    period: Period | None = None
    """Over what the limits count, in UTC; without one for good."""


class LimitView(BaseModel):
    """One limit there can be. ``limit`` is null where nothing limits."""

    limit: float | None
    spent: float
    reserved: float
    """Promised to calls in flight, and to those whose end a crash has hidden."""
    share: float | None
    """Of the limit, spent and reserved together."""


class BudgetView(BaseModel):
    """How a budget stands."""

    level: Level
    id: str
    """Of the task or the project."""
    period: Period
    since: datetime | None
    """When the present period began."""
    resets_at: datetime | None
    """When the next one begins, and tasks that wait for it go on."""
    max_tokens: LimitView
    max_cost_usd: LimitView
    max_wall_s: LimitView
    max_steps: LimitView

    @classmethod
    def of(cls, standing: Standing) -> "BudgetView":
        limits = dict(standing.limits())
        views = {}
        for name in LIMITS:
            limit, spent = limits.get(name), standing.spent[name]
            reserved = standing.reserved.get(name, spent * 0)
            views[name] = LimitView(
                limit=None if limit is None else number(limit),
                spent=round(number(spent), 8),
                reserved=number(reserved),
                share=None if limit is None else round(float((spent + reserved) / limit), 4),
            )
        ends = standing.ends
        return cls(
            level=standing.level,
            id=standing.scope,
            period=standing.period,
            since=None if ends is None else datetime.combine(standing.since, time(), UTC),
            resets_at=ends,
            **views,
        )


class ChangedBudget(BudgetView):
    """A project's budget after a change."""

    resumed: int
    """Tasks that waited for a limit which allows more now, and go on."""
    warnings: list[BudgetWarning]
    """Limits that cannot be kept, by the models of the tiers."""
