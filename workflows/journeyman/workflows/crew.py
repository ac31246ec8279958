"""The subtasks of a task that run at the same time, each as a child workflow."""

import asyncio
from dataclasses import dataclass, field

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from journeyman.agents.plans import ready_subtasks
    from journeyman.platform.kit.names import (
        SIGNAL_CANCEL,
        SIGNAL_DECIDED,
        SIGNAL_STANDING,
        WORKFLOW_TASK_TIMEOUT,
        Queue,
        subtask_workflow_id,
    )
    from journeyman.platform.tasks.contract import SubtaskProgress, TaskProgress

from journeyman.workflows import timing
from journeyman.workflows.agent_loop import Control
from journeyman.workflows.continuation import is_due
from journeyman.workflows.subtask_workflow import SubtaskWorkflow
from journeyman.workflows.types import PlanGraph, RunSubtask, SubtaskResult, TaskRef


@dataclass
class Crew:
    """Starts subtasks as they become ready, at most ``timing.PARALLEL_SUBTASKS`` at once, and passes signals on to them."""

    task: TaskRef
    control: Control
    _started: set[str] = field(default_factory=set)
    _running: dict[str, asyncio.Task[SubtaskResult]] = field(default_factory=dict)
    _stopping: bool = False

    async def tell(self, signal: str, *arguments: str | int | None) -> None:
        """Signal all subtasks that run. One that has just ended hears nothing, and needs to hear nothing."""
        for child in sorted(self._started):
            await _tell(child, signal, *arguments)

    async def tell_standing(self) -> None:
        """Tell all subtasks whether the task is paused now.

        Signals from one workflow to another may overtake each other: what they tell is a numbered state, not a change, and a
        subtask believes the highest number.
        """
        await self.tell(SIGNAL_STANDING, self.control.changes, self.control.paused_for)

    async def work(self, graph: PlanGraph, progress: TaskProgress) -> list[str]:
        """Carry the plan out as far as it goes, noting what is done in ``progress``; returns what was given up, and why.

        After one subtask was given up no other is started, but those that run come to their end: their work is kept.
        Nothing is started either once the history is full: with nothing given up and the plan not done, go on in a new run.
        """
        problems: list[str] = []
        try:
            while True:
                await self.control.gate()
                if not problems and not is_due():
                    self._start_ready(graph, progress)
                if not self._running:
                    return problems
                await workflow.wait(list(self._running.values()), return_when=asyncio.FIRST_COMPLETED)
                for subtask_id, running in list(self._running.items()):
                    if running.done():
                        del self._running[subtask_id]
                        problems += self._settle(progress, running.result())
        finally:
            await self._stop()

    def _start_ready(self, graph: PlanGraph, progress: TaskProgress) -> None:
        ready = [node.id for node in ready_subtasks(graph, progress.done) if node.id not in self._running]
        for subtask_id in ready[: max(0, timing.PARALLEL_SUBTASKS - len(self._running))]:
            resumed = progress.subtasks.get(subtask_id) or SubtaskProgress()
            subtask = RunSubtask(
                task=self.task,
                revision=progress.revision,
                subtask_id=subtask_id,
                progress=resumed.model_copy(
                    update={"paused_for": self.control.paused_for, "standing": self.control.changes}
                ),
            )
            self._running[subtask_id] = asyncio.create_task(self._run(subtask))

    @staticmethod
    def _settle(progress: TaskProgress, result: SubtaskResult) -> list[str]:
        progress.subtasks.pop(result.subtask_id, None)
        if result.completed:
            progress.done.append(result.subtask_id)
            return []
        return [f"Subtask {result.subtask_id} was given up. {result.problem}"]

    async def _run(self, subtask: RunSubtask) -> SubtaskResult:
        known = set(self.control.heard)
        child_id = subtask_workflow_id(self.task.task_id, subtask.subtask_id, subtask.revision, self.task.epoch)
        child = await workflow.start_child_workflow(
            SubtaskWorkflow.run,
            subtask,
            id=child_id,
            task_queue=Queue.ORCHESTRATION,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            memo=workflow.memo(),
            # One that runs was started by a run of this task that was reset: it is of no use any more.
            id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING,
        )
        self._started.add(child_id)
        try:
            if self.control.changes != subtask.progress.standing:
                # What came while the child was being started could not reach it.
                await _tell(child_id, SIGNAL_STANDING, self.control.changes, self.control.paused_for)
            for approval_id in sorted(self.control.heard - known):
                await _tell(child_id, SIGNAL_DECIDED, approval_id)
            if self._stopping:
                await _tell(child_id, SIGNAL_CANCEL)
            return await child
        finally:
            self._started.discard(child_id)

    async def _stop(self) -> None:
        """Have what still runs end, and wait for that.

        By a signal to the workflow's id: cancelling a child is aimed at the run that was started, and has no effect on one
        that has gone on in a new run since (seen on server 1.32).
        """
        if self._running:
            self._stopping = True
            await self.tell(SIGNAL_CANCEL)
            await workflow.wait(list(self._running.values()))
            self._running.clear()


async def _tell(child_id: str, signal: str, *arguments: str | int | None) -> None:
    try:
        await workflow.get_external_workflow_handle(child_id).signal(signal, args=arguments)
    except FailureError:
        workflow.logger.info("subtask workflow %s ended before it heard of %s", child_id, signal)
