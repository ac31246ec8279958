"""One subtask: Coder and Reviewer take turns until the work is approved or the rounds are used up."""

from types import NoneType

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from journeyman.agents.review import Next
    from journeyman.platform.kit.names import SIGNAL_PAUSE, SIGNAL_RESUME, SUBTASK_WORKFLOW

from journeyman.workflows.agent_loop import Control, converse, in_sandbox, store
from journeyman.workflows.types import (
    Findings,
    OpenThread,
    RunSubtask,
    SubtaskEnd,
    SubtaskProgress,
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
        self._control = Control()
        self._control.paused_for = subtask.progress.paused_for

    @workflow.signal(name=SIGNAL_PAUSE)
    def pause(self, reason: str) -> None:
        self._control.pause(reason)

    @workflow.signal(name=SIGNAL_RESUME)
    def resume(self) -> None:
        self._control.resume()

    @workflow.query
    def progress(self) -> SubtaskProgress:
        return self._progress

    @workflow.run
    async def run(self, subtask: RunSubtask) -> SubtaskResult:
        problem: str | None = None
        try:
            await self._work()
        except _Suspended:
            self._progress.paused_for = self._control.paused_for
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new(subtask.model_copy(update={"progress": self._progress}))
        except _GivenUp as outcome:
            problem = str(outcome)
        end = SubtaskEnd(
            task=subtask.task,
            revision=subtask.revision,
            subtask_id=subtask.subtask_id,
            completed=problem is None,
            problem=problem,
        )
        await in_sandbox("end_subtask", end, NoneType)
        return SubtaskResult(subtask_id=subtask.subtask_id, completed=problem is None, problem=problem)

    async def _work(self) -> None:
        """Return once the work is approved."""
        progress = self._progress
        while True:
            if progress.coder is None:
                progress.coder = await self._open("coder", 1)
            if progress.reviewer is None:
                await self._code(progress, progress.coder)
                progress.reviewer = await self._open("reviewer", progress.round)
                progress.reviewer_step = 0
            if await self._review(progress, progress.coder, progress.reviewer):
                return
            progress.reviewer = None
            progress.round += 1

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

    async def _open(self, role: str, round_: int) -> ThreadRef:
        opening = OpenThread(
            task=self._subtask.task,
            role=role,
            revision=self._subtask.revision,
            round=round_,
            subtask_id=self._subtask.subtask_id,
        )
        return await in_sandbox("open_thread", opening, ThreadRef)
