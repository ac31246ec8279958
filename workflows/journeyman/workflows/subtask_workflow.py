"""One subtask: Coder and Reviewer take turns until the work is approved and merged, or the rounds are used up."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from journeyman.agents.review import Next, ReviewPolicy
    from journeyman.platform.kit.names import (
        SIGNAL_CANCEL,
        SIGNAL_DECIDED,
        SIGNAL_INTERRUPT,
        SIGNAL_PAUSE,
        SIGNAL_STANDING,
        SUBTASK_WORKFLOW,
        task_workflow_id,
    )
    from journeyman.platform.tasks.contract import SubtaskProgress

from journeyman.workflows.agent_loop import Control, converse, in_sandbox, store
from journeyman.workflows.continuation import go_on
from journeyman.workflows.types import (
    Findings,
    Integration,
    OpenThread,
    RunSubtask,
    SubtaskEnd,
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
        self._control = Control(subtask.progress.paused_for, self._spread)
        self._cancelled = False
        self._main: asyncio.Task[SubtaskResult | None] | None = None

    @workflow.signal(name=SIGNAL_CANCEL)
    def cancel(self) -> None:
        self._cancelled = True
        if self._main is not None and not self._main.cancelling():
            self._main.cancel()

    @workflow.signal(name=SIGNAL_STANDING)
    def standing(self, number: int, paused_for: str | None) -> None:
        if number > self._progress.standing:
            self._progress.standing = number
            self._control.paused_for = paused_for

    @workflow.signal(name=SIGNAL_INTERRUPT)
    def interrupt(self) -> None:
        self._control.interrupt()

    @workflow.signal(name=SIGNAL_DECIDED)
    def decided(self, approval_id: str) -> None:
        self._control.hear(approval_id)

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
        """How the subtask ended; None when the run's history is full."""
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

    async def _spread(self, reason: str) -> None:
        """The task's workflow tells the other subtasks, and this one again, which changes nothing."""
        parent = workflow.get_external_workflow_handle(task_workflow_id(self._subtask.task.task_id))
        await parent.signal(SIGNAL_PAUSE, reason)

    async def _work(self) -> None:
        """Return once the work is approved and in the task's head."""
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
        talk = await converse(self._control, coder, progress.coder_step)
        progress.coder_step = talk.step
        if talk.suspended:
            raise _Suspended
        if talk.outcome is None:
            raise _GivenUp("The Coder did not hand over any work: it stopped calling tools or used up its turns.")

    async def _review(self, progress: SubtaskProgress, coder: ThreadRef, reviewer: ThreadRef) -> bool:
        """Whether the work is approved; if not, the Coder has the findings now."""
        talk = await converse(self._control, reviewer, progress.reviewer_step)
        progress.reviewer_step = talk.step
        if talk.suspended:
            raise _Suspended
        if talk.outcome is None:
            raise _GivenUp("The Reviewer came to no verdict: it stopped calling tools or used up its turns.")
        if talk.outcome.next == Next.ACCEPT:
            return True
        if talk.outcome.next != Next.REVISE:
            raise _GivenUp(talk.outcome.reason)
        findings = Findings(thread=coder, reviewer_thread_id=reviewer.thread_id, round=progress.round)
        await store("deliver_findings", findings)
        return False

    async def _end(self, problem: str | None) -> Integration:
        """Merge approved work into the task's head, or note why the subtask was given up."""
        end = SubtaskEnd(
            task=self._subtask.task,
            revision=self._subtask.revision,
            subtask_id=self._subtask.subtask_id,
            coder=self._progress.coder or "",
            round=self._progress.round,
            completed=problem is None,
            problem=problem,
        )
        return await in_sandbox("end_subtask", end, Integration)

    def _thread(self, thread_id: str | None, role: str) -> ThreadRef | None:
        """A thread that is open already."""
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
        return await in_sandbox("open_thread", opening, ThreadRef)
