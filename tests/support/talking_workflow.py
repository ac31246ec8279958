"""One conversation of a workflow, whose activities do what a test tells them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from journeyman.platform.kit.names import SIGNAL_INTERRUPT

from journeyman.workflows.agent_loop import Control, converse
from journeyman.workflows.types import Standing, Step, StepOutcome, TaskRef, ThreadRef, Turn, Waiting

THREAD = ThreadRef(task=TaskRef(task_id="task_1", project_id="proj_1"), thread_id="thr_1", role="coder", revision=1)


@workflow.defn
class Talking:
    @workflow.init
    def __init__(self) -> None:
        self._control = Control(None, self._spread)
        self._interruptions = 0

    async def _spread(self, reason: str) -> None:
        """Nobody else is there."""

    @workflow.signal(name=SIGNAL_INTERRUPT)
    def interrupt(self) -> None:
        self._interruptions += 1
        self._control.interrupt()

    @workflow.query
    def interruptions(self) -> int:
        return self._interruptions

    @workflow.run
    async def run(self) -> int:
        """How many steps there were."""
        return (await converse(self._control, THREAD, 0)).step


@dataclass
class Told:
    """Activities. ``first``: what becomes of the first model call.

    ``asked``: names of what was asked for, in order; of calls to be cut short with an exclamation mark.
    """

    first: Callable[[], Awaitable[Turn]]
    asked: list[str] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    @activity.defn
    async def take_step(self, _step: Step) -> Turn:
        return await self._model("take_step", StepOutcome(submitted=True))

    @activity.defn
    async def call_model(self, _step: Step) -> Turn:
        return await self._model("call_model", None)

    async def _model(self, name: str, outcome: StepOutcome | None) -> Turn:
        self.asked.append(name)
        if len(self.asked) > 1:
            return Turn(outcome=outcome)
        self.began.set()
        return await self.first()

    @activity.defn
    async def run_tools(self, step: Step) -> StepOutcome:
        self.asked.append("run_tools!" if step.interrupted else "run_tools")
        return StepOutcome(submitted=not step.interrupted)

    @activity.defn
    async def settle_approvals(self, waiting: Waiting) -> Standing:
        return Standing(pending=waiting.approvals, again_s=3600)
