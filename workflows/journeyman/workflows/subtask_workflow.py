"""One subtask: Coder and Reviewer take turns until the work is approved and merged, or the rounds are used up."""

import asyncio
from types import NoneType

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from journeyman.agents.review import Next, ReviewPolicy
    from journeyman.platform.kit.names import (
        SIGNAL_CANCEL,
        SIGNAL_DECIDED,
        SIGNAL_INTERRUPT,
        SIGNAL_PAUSE,
        SIGNAL_PAUSE_STATE,
        SUBTASK_WORKFLOW,
        task_workflow_id,
    )
    from journeyman.platform.tasks.contract import SubtaskProgress

from journeyman.workflows.activity_calls import SandboxRoute, run_sandbox_activity, run_store_activity
from journeyman.workflows.continuation import go_on
from journeyman.workflows.control import WorkflowControl
from journeyman.workflows.thread_run import run_thread
from journeyman.workflows.types import (
    DeliverFindings,
    EndSubtask,
    Integration,
    OpenThread,
    RunSubtask,
    SubtaskResult,
    ThreadRef,
)


class _Suspended(Exception):
    """The run's history is full; a new run goes on from the progress."""


class _GivenUp(Exception):
    """The subtask will not be completed; the text says why."""


@workflow.defn(name=SUBTASK_WORKFLOW)
class SubtaskWorkflow:
    """Child of ``TaskWorkflow``; id from ``subtask_workflow_id``."""

    @workflow.init
    def __init__(self, subtask: RunSubtask) -> None:
        self._subtask = subtask
        self._progress = subtask.progress.model_copy()
        self._control = WorkflowControl(subtask.progress.paused_for, self._propagate_pause)
        self._cancelled = False
        self._main: asyncio.Task[SubtaskResult | None] | None = None

    @workflow.signal(name=SIGNAL_CANCEL)
    def cancel(self) -> None:
        self._cancelled = True
        if self._main is not None and not self._main.cancelling():
            self._main.cancel()

    @workflow.signal(name=SIGNAL_PAUSE_STATE)
    def pause_state(self, version: int, paused_for: str | None) -> None:
        if version > self._progress.pause_version:
            self._progress.pause_version = version
            self._control.paused_for = paused_for

    @workflow.signal(name=SIGNAL_INTERRUPT)
    def interrupt(self) -> None:
        self._control.interrupt()

    @workflow.signal(name=SIGNAL_DECIDED)
    def decided(self, approval_id: str) -> None:
        self._control.note_decision(approval_id)

    @workflow.query
    def progress(self) -> SubtaskProgress:
        return self._progress

    @workflow.run
    async def run(self, subtask: RunSubtask) -> SubtaskResult:
        self._main = asyncio.create_task(self._course())
        if self._cancelled:
            self._main.cancel()
        try:
            result = await self._main
        except (asyncio.CancelledError, FailureError):
            if not self._cancelled:
                raise
            result = self._result("It was cancelled.")
        if result is None:
            await workflow.wait_condition(workflow.all_handlers_finished)
            if self._cancelled:
                return self._result("It was cancelled.")
            self._progress.paused_for = self._control.paused_for
            go_on(subtask.model_copy(update={"progress": self._progress}))
        return result

    async def _course(self) -> SubtaskResult | None:
        """Run the subtask; returns how it ended, or None when the run's history is full."""
        try:
            await self._work()
        except _Suspended:
            return None
        except _GivenUp as outcome:
            await self._end(str(outcome))
            return self._result(str(outcome))
        return self._result(None)

    def _result(self, problem: str | None) -> SubtaskResult:
        return SubtaskResult(subtask_id=self._subtask.subtask_id, completed=problem is None, problem=problem)

    async def _propagate_pause(self, reason: str) -> None:
        """Signal the pause to the task's workflow, which signals it to all subtasks."""
        parent = workflow.get_external_workflow_handle(task_workflow_id(self._subtask.task.task_id))
        await parent.signal(SIGNAL_PAUSE, reason)

    async def _work(self) -> None:
        """Return once the work is approved and merged into the task's head."""
        progress = self._progress
        while True:
            coder = self._thread(progress.coder, "coder") or await self._open("coder", 1)
            progress.coder = coder.thread_id
            reviewer = self._thread(progress.reviewer, "reviewer")
            if reviewer is None:
                await self._code(progress, coder)
                reviewer = await self._open("reviewer", progress.round)
                progress.reviewer = reviewer.thread_id
                progress.reviewer_step = 0
            approved = await self._review(progress, coder, reviewer)
            if approved and not (await self._end(None)).conflict:
                return
            progress.reviewer = None
            progress.round += 1
            if approved:
                self._count_conflict(progress)

    @staticmethod
    def _count_conflict(progress: SubtaskProgress) -> None:
        progress.conflicts += 1
        if progress.conflicts > ReviewPolicy().max_conflicts:
            raise _GivenUp(f"Its work conflicted with that of other subtasks {progress.conflicts} times in a row.")

    async def _code(self, progress: SubtaskProgress, coder: ThreadRef) -> None:
        run = await run_thread(self._control, coder, progress.coder_step)
        progress.coder_step = run.step
        if run.suspended:
            raise _Suspended
        if run.outcome is None:
            raise _GivenUp("The Coder did not hand over any work: it stopped calling tools or used up its turns.")

    async def _review(self, progress: SubtaskProgress, coder: ThreadRef, reviewer: ThreadRef) -> bool:
        """Run the Reviewer's thread; returns whether the work is approved. If not, the findings are delivered to the Coder."""
        run = await run_thread(self._control, reviewer, progress.reviewer_step)
        progress.reviewer_step = run.step
        if run.suspended:
            raise _Suspended
        if run.outcome is None:
            raise _GivenUp("The Reviewer came to no verdict: it stopped calling tools or used up its turns.")
        if run.outcome.next == Next.ACCEPT:
            return True
        if run.outcome.next != Next.REVISE:
            raise _GivenUp(run.outcome.reason)
        findings = DeliverFindings(thread=coder, reviewer_thread_id=reviewer.thread_id, round=progress.round)
        await run_store_activity("deliver_findings", findings, NoneType)
        return False

    async def _end(self, problem: str | None) -> Integration:
        """Merge approved work into the task's head, or note why the subtask was given up."""
        end = EndSubtask(
            task=self._subtask.task,
            revision=self._subtask.revision,
            subtask_id=self._subtask.subtask_id,
            coder=self._progress.coder or "",
            round=self._progress.round,
            completed=problem is None,
            problem=problem,
        )
        return await run_sandbox_activity("end_subtask", end, Integration, self._any_node())

    def _thread(self, thread_id: str | None, role: str) -> ThreadRef | None:
        """The reference of a thread that is open already; None without an id."""
        if thread_id is None:
            return None
        subtask = self._subtask
        return ThreadRef(
            task=subtask.task,
            thread_id=thread_id,
            role=role,
            revision=subtask.revision,
            subtask_id=subtask.subtask_id,
        )

    async def _open(self, role: str, round_: int) -> ThreadRef:
        opening = OpenThread(
            task=self._subtask.task,
            role=role,
            revision=self._subtask.revision,
            round=round_,
            subtask_id=self._subtask.subtask_id,
        )
        return await run_sandbox_activity("open_thread", opening, ThreadRef, self._any_node())

    def _any_node(self) -> SandboxRoute:
        """The route of work that any node can do."""
        return SandboxRoute(self._subtask.task.sandbox_queue)
