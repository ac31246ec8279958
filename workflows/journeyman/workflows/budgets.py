"""A task's budget in the words of the API, as the limits that agents and the breaker reckon with."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from journeyman.agents.budget import Limits


def limits_of(budget: Mapping[str, Any]) -> Limits:
    """Limits from ``{max_tokens, max_cost_usd, max_wall_s, max_steps}``; what is absent is no limit."""
    cost = budget.get("max_cost_usd")
    return Limits(
        tokens=budget.get("max_tokens"),
        cost_usd=None if cost is None else Decimal(str(cost)),
        wall_time_s=budget.get("max_wall_s"),
        steps=budget.get("max_steps"),
    )
