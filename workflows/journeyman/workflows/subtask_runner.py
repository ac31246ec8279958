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
        SIGNAL_PAUSE_STATE,
        WORKFLOW_TASK_TIMEOUT,
        Queue,
        subtask_workflow_id,
    )
    from journeyman.platform.tasks.contract import SubtaskProgress, TaskProgress

from journeyman.workflows import timing
from journeyman.workflows.continuation import is_due
from journeyman.workflows.control import WorkflowControl
from journeyman.workflows.subtask_workflow import SubtaskWorkflow
from journeyman.workflows.types import PlanGraph, RunSubtask, SubtaskResult, TaskRef


@dataclass
class SubtaskRunner:
    """Starts subtasks as they become ready, at most ``timing.PARALLEL_SUBTASKS`` at once, and forwards signals to them."""

    task: TaskRef
    control: WorkflowControl
    _started: set[str] = field(default_factory=set)
    _running: dict[str, asyncio.Task[SubtaskResult]] = field(default_factory=dict)
    _stopping: bool = False

    async def signal_all(self, signal: str, *arguments: str | int | None) -> None:
        """Signal all subtasks that run. A subtask that has just ended is skipped."""
        for child in sorted(self._started):
            await _signal(child, signal, *arguments)

    async def signal_pause_state(self) -> None:
        """Signal to all subtasks whether the task is paused now.

        Signals from one workflow to another may overtake each other: each carries a numbered state, not a change, and a
        subtask takes the highest number.
        """
        await self.signal_all(SIGNAL_PAUSE_STATE, self.control.pause_version, self.control.paused_for)

    async def run_plan(self, graph: PlanGraph, progress: TaskProgress) -> list[str]:
        """Run the plan's subtasks, and note completed ones in ``progress``; returns a problem for each that was given up.

        After a subtask was given up no other is started; those that run come to their end, and their work is kept. None is
        started either once the history is full: without problems and with the plan not done, go on in a new run.
        """
        problems: list[str] = []
        try:
            while True:
                await self.control.wait_until_resumed()
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
                    update={"paused_for": self.control.paused_for, "pause_version": self.control.pause_version}
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
        known = set(self.control.decided)
        child_id = subtask_workflow_id(self.task.task_id, subtask.subtask_id, subtask.revision, self.task.epoch)
        child = await workflow.start_child_workflow(
            SubtaskWorkflow.run,
            subtask,
            id=child_id,
            task_queue=Queue.ORCHESTRATION,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            # A child that runs under this id was started by a run that was reset since: its work is not used.
            id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING,
        )
        self._started.add(child_id)
        try:
            if self.control.pause_version != subtask.progress.pause_version:
                # Signals that came while the child was being started could not reach it.
                await _signal(child_id, SIGNAL_PAUSE_STATE, self.control.pause_version, self.control.paused_for)
            for approval_id in sorted(self.control.decided - known):
                await _signal(child_id, SIGNAL_DECIDED, approval_id)
            if self._stopping:
                await _signal(child_id, SIGNAL_CANCEL)
            return await child
        finally:
            self._started.discard(child_id)

    async def _stop(self) -> None:
        """Cancel the subtasks that run, and wait for their end.

        By a signal to the workflow's id: a cancellation is addressed to the run that was started, and has no effect on a child
        that continued as a new run since (seen on server 1.32).
        """
        if self._running:
            self._stopping = True
            await self.signal_all(SIGNAL_CANCEL)
            await workflow.wait(list(self._running.values()))
            self._running.clear()


async def _signal(child_id: str, signal: str, *arguments: str | int | None) -> None:
    try:
        await workflow.get_external_workflow_handle(child_id).signal(signal, args=arguments)
    except FailureError:
        workflow.logger.info("subtask workflow %s ended before the signal %s reached it", child_id, signal)
