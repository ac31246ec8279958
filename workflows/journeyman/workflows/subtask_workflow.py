"""One subtask: Coder and Reviewer take turns until the work is approved or the rounds are used up."""

from types import NoneType

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from journeyman.platform.kit.names import SIGNAL_PAUSE, SIGNAL_RESUME, SUBTASK_WORKFLOW

from journeyman.workflows import timing
from journeyman.workflows.agent_loop import Control, converse, in_sandbox, store
from journeyman.workflows.types import Findings, OpenThread, RunSubtask, SubtaskEnd, SubtaskResult, ThreadRef


@workflow.defn(name=SUBTASK_WORKFLOW)
class SubtaskWorkflow:
    """Child of ``TaskWorkflow``; id from ``subtask_workflow_id``."""

    def __init__(self) -> None:
        self._control = Control()

    @workflow.signal(name=SIGNAL_PAUSE)
    def pause(self, reason: str) -> None:
        self._control.pause(reason)

    @workflow.signal(name=SIGNAL_RESUME)
    def resume(self) -> None:
        self._control.resume()

    @workflow.run
    async def run(self, subtask: RunSubtask) -> SubtaskResult:
        problem = await self._work(subtask)
        end = SubtaskEnd(
            task=subtask.task,
            revision=subtask.revision,
            subtask_id=subtask.subtask_id,
            completed=problem is None,
            problem=problem,
        )
        await in_sandbox("end_subtask", end, NoneType)
        return SubtaskResult(subtask_id=subtask.subtask_id, completed=problem is None, problem=problem)

    async def _work(self, subtask: RunSubtask) -> str | None:
        """Returns why the subtask was given up, or None when it was approved."""
        coder = await self._open(subtask, "coder", 1)
        step = 0
        findings = ""
        for round_ in range(1, timing.ROUNDS_PER_SUBTASK + 1):
            work, step = await converse(self._control, coder, step)
            if work is None:
                return "The Coder did not hand over any work: it stopped calling tools or used up its turns."
            reviewer = await self._open(subtask, "reviewer", round_)
            review, _ = await converse(self._control, reviewer, 0)
            if review is None:
                return "The Reviewer did not come to a verdict: it stopped calling tools or used up its turns."
            if review.verdict == "approve":
                return None
            findings = review.findings or ""
            if round_ < timing.ROUNDS_PER_SUBTASK:
                await store(
                    "deliver_findings", Findings(thread=coder, reviewer_thread_id=reviewer.thread_id, round=round_)
                )
        return f"The Reviewer rejected the work {timing.ROUNDS_PER_SUBTASK} times. Its last findings:\n{findings}"

    @staticmethod
    async def _open(subtask: RunSubtask, role: str, round_: int) -> ThreadRef:
        return await in_sandbox(
            "open_thread",
            OpenThread(
                task=subtask.task,
                role=role,
                revision=subtask.revision,
                round=round_,
                subtask_id=subtask.subtask_id,
            ),
            ThreadRef,
        )
