"""One thread of a workflow, whose activities do what a test says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from journeyman.platform.kit.names import SIGNAL_INTERRUPT

from journeyman.workflows.control import WorkflowControl
from journeyman.workflows.thread_run import run_thread
from journeyman.workflows.types import PendingApprovals, Step, StepOutcome, TaskApprovals, TaskRef, ThreadRef

THREAD = ThreadRef(task=TaskRef(task_id="task_1", project_id="proj_1"), thread_id="thr_1", role="coder", revision=1)


@workflow.defn
class ThreadWorkflow:
    @workflow.init
    def __init__(self) -> None:
        self._control = WorkflowControl(None, self._propagate_pause)
        self._interruptions = 0

    async def _propagate_pause(self, reason: str) -> None:
        """No-op: there is no other workflow."""

    @workflow.signal(name=SIGNAL_INTERRUPT)
    def interrupt(self) -> None:
        self._interruptions += 1
        self._control.interrupt()

    @workflow.query
    def interruptions(self) -> int:
        return self._interruptions

    @workflow.run
    async def run(self) -> int:
        """Returns how many steps there were."""
        return (await run_thread(self._control, THREAD, 0)).step


@dataclass
class ScriptedActivities:
    """``steps``: what the first steps do, in order; every later one submits, or is cut short when it is interrupted.

    ``started``: ``(queue, interrupted)`` of each ``run_step``, in order.
    """

    steps: list[Callable[[], Awaitable[StepOutcome]]]
    started: list[tuple[str, bool]] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    @activity.defn
    async def run_step(self, step: Step) -> StepOutcome:
        self.started.append((activity.info().task_queue, step.interrupted))
        self.began.set()
        if len(self.started) <= len(self.steps):
            return await self.steps[len(self.started) - 1]()
        return StepOutcome(submitted=not step.interrupted)

    @activity.defn
    async def settle_approvals(self, request: TaskApprovals) -> PendingApprovals:
        return PendingApprovals(pending=request.approvals, recheck_after_s=3600)
