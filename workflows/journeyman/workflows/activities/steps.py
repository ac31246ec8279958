"""A whole step of an agent as one activity: what passes between two of them costs more than the platform's own work in them."""

import logging

from temporalio import activity

from journeyman.workflows.activities.models import ModelActivities
from journeyman.workflows.activities.tools import ToolActivities
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import Step, Turn

logger = logging.getLogger(__name__)


class StepActivities:
    """For workers that have all roles."""

    def __init__(self, models: ModelActivities, tools: ToolActivities) -> None:
        self._models = models
        self._tools = tools

    @activity.defn
    @beating
    async def take_step(self, step: Step) -> Turn:
        """Call the model, then carry out the tool calls that it asks for, as ``call_model`` and ``run_tools`` do.

        Only the model call fails the activity. When the tool calls cannot be carried out, the outcome is left out: they are
        tried again as ``run_tools``, as often and at such intervals as befits them, and find what was done of them here.
        """
        turn, fresh = await self._models.answer(step)
        step = step.model_copy(update={"new_tokens": turn.new_tokens})
        try:
            turn.outcome = await self._tools.carry_out(step, fresh)
        except Exception:  # which of them passes is decided where they are tried again
            logger.warning("the tool calls of step %s stopped; they are tried again", step.key, exc_info=True)
        return turn
