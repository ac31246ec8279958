"""Warnings of limits that are in order and yet will not be kept as they read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel

from journeyman.agents.roles import Role
from journeyman.platform.inference.gateway.routing import Routing
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.settings import Settings
from journeyman.platform.ledger.pricing import PriceTable
from journeyman.platform.tasks.contract import TERMINAL, TaskState
from journeyman.platform.tasks.models import Task

_TIERS: Final = ("standard", "fast")
_REMEDY: Final = "Give its price in the file that JOURNEYMAN_MODEL_PRICES names, or limit tokens, time or steps."


class BudgetWarning(BaseModel):
    """``message`` says what happens and what can be done."""

    code: Literal["dollar_limit_without_price"]
    message: str


@dataclass(frozen=True, slots=True)
class BudgetWarnings:
    """Finds them by the models that would work under a limit. ``replay``: scripted answers stand in for a model."""

    prices: PriceTable
    routing: Routing
    refuse_unpriced: bool
    replay: bool

    @classmethod
    def from_settings(cls, settings: Settings, prices: PriceTable) -> "BudgetWarnings":
        return cls(prices, Routing.from_settings(settings), settings.model_refuse_unpriced, settings.uses_replay_engine)

    def of_task(self, task: Task) -> list[BudgetWarning]:
        """About the task's own limits, as long as it has not ended."""
        if TaskState(task.state) in TERMINAL:
            return []
        return self.of_budget(task.budget, {task.model_for(role) for role in Role})

    def of_budget(self, budget: Json, models: Iterable[str] = _TIERS) -> list[BudgetWarning]:
        """About limits under which these models, or tiers, work."""
        if budget.get("max_cost_usd") is None:
            return []
        names = sorted({self.routing.engine_name(model) for model in models})
        unpriced = " and ".join(repr(name) for name in names if self.prices.price_of(name) is None)
        if not unpriced:
            return []
        if self.replay:
            said = "The limit in dollars limits nothing: the replay engine's scripted answers have no price."
        elif self.refuse_unpriced:
            said = (
                f"No price is known for the model {unpriced}, and this platform pauses what has a limit in dollars before "
                f"such a model is called. {_REMEDY}"
            )
        else:
            said = (
                f"The limit in dollars cannot be kept: no price is known for the model {unpriced}, whose calls count as "
                f"free. {_REMEDY}"
            )
        return [BudgetWarning(code="dollar_limit_without_price", message=said)]
