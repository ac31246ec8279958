"""One task from submission to a verified end: prepare, plan, work, verify, hand over."""

import asyncio
from contextlib import suppress
from types import NoneType
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, ChildWorkflowError, FailureError

with workflow.unsafe.imports_passed_through():
    from journeyman.agents.review import ReviewPolicy
    from journeyman.platform.kit.names import (
        SIGNAL_CANCEL,
        SIGNAL_DECIDED,
        SIGNAL_INTERRUPT,
        SIGNAL_PAUSE,
        SIGNAL_RESUME,
        SIGNAL_REWIND,
        TASK_WORKFLOW,
    )
    from journeyman.platform.tasks.contract import Phase, StartTask, TaskProgress, TaskState

from journeyman.workflows import timing
from journeyman.workflows.activity_calls import SandboxRoute, run_sandbox_activity, run_store_activity
from journeyman.workflows.continuation import go_on, is_due
from journeyman.workflows.control import WorkflowControl
from journeyman.workflows.subtask_runner import SubtaskRunner
from journeyman.workflows.thread_run import run_thread, wait_for_decisions
from journeyman.workflows.types import (
    ApplyRewind,
    ChangeState,
    FinishTask,
    LoadPlan,
    OpenThread,
    PlanGraph,
    PlanVerdict,
    Prepared,
    RequestPlanApproval,
    TaskApprovals,
    TaskClosing,
    TaskRef,
    ThreadRef,
    Verification,
    Verify,
)

R = TypeVar("R")

REWINDS_REMEMBERED = 50
"""Ids of applied rewinds that a run carries over, so that a signal delivered twice goes back once."""


@workflow.defn(name=TASK_WORKFLOW)
class TaskWorkflow:
    """Carries a task to its end. The workflow's id is the task's id. It always completes; the store holds how the task ended."""

    @workflow.init
    def __init__(self, start: StartTask) -> None:
        self._task = TaskRef(
            task_id=start.task_id,
            project_id=start.project_id,
            epoch=start.progress.epoch,
            sandbox_queue=start.sandbox_queue,
        )
        self._progress = start.progress.model_copy(deep=True)
        self._control = WorkflowControl(start.progress.paused_for, self._propagate_pause)
        self._subtasks = SubtaskRunner(self._task, self._control)
        self._cancelled = False
        self._rewinds: list[str] = []
        self._main: asyncio.Task[FinishTask | None] | None = None

    @workflow.signal(name=SIGNAL_CANCEL)
    def cancel(self) -> None:
        self._cancelled = True
        self._stop()

    @workflow.signal(name=SIGNAL_REWIND)
    def rewind(self, rewind_id: str) -> None:
        if rewind_id not in self._progress.rewinds and rewind_id not in self._rewinds:
            self._rewinds.append(rewind_id)
            self._stop()

    @workflow.signal(name=SIGNAL_PAUSE)
    async def pause(self, reason: str) -> None:
        self._control.pause(reason)
        await self._subtasks.signal_pause_state()

    @workflow.signal(name=SIGNAL_RESUME)
    async def resume(self) -> None:
        self._control.resume()
        await self._subtasks.signal_pause_state()

    @workflow.signal(name=SIGNAL_INTERRUPT)
    async def interrupt(self) -> None:
        self._control.interrupt()
        await self._subtasks.signal_all(SIGNAL_INTERRUPT)

    @workflow.signal(name=SIGNAL_DECIDED)
    async def decided(self, approval_id: str) -> None:
        self._control.note_decision(approval_id)
        await self._subtasks.signal_all(SIGNAL_DECIDED, approval_id)

    @workflow.query
    def progress(self) -> TaskProgress:
        return self._progress

    @workflow.run
    async def run(self, start: StartTask) -> str:
        while True:
            finish = await self._outcome()
            if finish is not None:
                # Beyond cancellation's reach: however the task ended, its sandboxes are released and its end is written.
                closed = await asyncio.shield(self._close(finish))
                if closed.state is not None:
                    await self._reflect(finish)
                    return closed.state
                self._reopen(closed)
            await workflow.wait_condition(workflow.all_handlers_finished)
            await self._go_back()
            if self._cancelled or self._rewinds:
                continue
            self._progress.paused_for = self._control.paused_for
            go_on(start.model_copy(update={"progress": self._progress}))

    async def _reflect(self, finish: FinishTask) -> None:
        """Keep the lessons of a verified task. The task has ended by then, and its end never waits for this."""
        if finish.state == TaskState.SUCCEEDED:
            with suppress(ActivityError, asyncio.CancelledError):
                await asyncio.shield(run_store_activity("reflect", self._task, NoneType))

    def _stop(self) -> None:
        """Cancel the main coroutine, once: a second cancellation would interrupt the cleanup after the first."""
        if self._main is not None and not self._main.cancelling():
            self._main.cancel()

    def _diverted(self) -> bool:
        """Whether a person asked for a cancellation or a rewind."""
        return self._cancelled or bool(self._rewinds)

    async def _propagate_pause(self, reason: str) -> None:
        """No-op: no subtask runs during planning."""

    async def _outcome(self) -> FinishTask | None:
        """How the task ended; None to go on in a new run: the history is full, or a rewind was requested."""
        if not self._diverted():
            self._main = asyncio.create_task(self._carry())
            try:
                finish = await self._main
            except (asyncio.CancelledError, CancelledError):
                finish = None
            except FailureError as error:
                finish = self._ended(TaskState.ERRORED, *describe(error))
            if not self._diverted():
                return finish
        return self._ended(TaskState.CANCELLED) if self._cancelled else None

    async def _close(self, finish: FinishTask) -> TaskClosing:
        """Release the task's sandboxes and write its end, however often that takes."""
        try:
            await self._on_any_node("release_sandboxes", self._task, NoneType)
        except ActivityError:
            workflow.logger.exception("sandboxes were not released; they end with their leases")
        while True:
            try:
                return await run_store_activity("finish_task", finish, TaskClosing)
            except ActivityError:
                workflow.logger.exception("the end of the task could not be written; trying again")
                await workflow.sleep(timing.FINISH_AGAIN)

    def _reopen(self, closed: TaskClosing) -> None:
        """Go on after an end that was not written, because a person had asked for something before."""
        if closed.rewind_id is not None:
            self.rewind(closed.rewind_id)
        elif closed.unread:
            self._plan_anew("A person sent a message when the work was already verified. Plan what it asks for.")

    async def _go_back(self) -> None:
        """Apply the requested rewinds in order; the next run begins at the progress that the last one returns."""
        while self._rewinds and not self._cancelled:
            rewind_id = self._rewinds.pop(0)
            request = ApplyRewind(task=self._task, rewind_id=rewind_id)
            before, version = self._progress, self._control.pause_version
            self._progress = await self._on_any_node("apply_rewind", request, TaskProgress)
            if self._progress.paused_for is None and self._control.pause_version == version:
                # The reason to pause was undone with the rest. One that came meanwhile holds.
                self._control.resume()
            self._progress.rewinds = [*before.rewinds, rewind_id][-REWINDS_REMEMBERED:]
            # One may have been cut short: its receipts stay, and are not taken for those of the next.
            self._progress.verifications = before.verifications + 1
            self._task.epoch = self._progress.epoch

    async def _carry(self) -> FinishTask | None:
        progress = self._progress
        while True:
            await self._control.wait_until_resumed()
            if is_due():
                return None
            match progress.phase:
                case Phase.PREPARE:
                    finish = await self._prepare(progress)
                case Phase.PLAN:
                    finish = await self._plan(progress)
                case Phase.APPROVE:
                    finish = await self._approve(progress)
                case Phase.WORK:
                    finish = await self._work(progress)
                case Phase.VERIFY:
                    finish = await self._verify(progress)
            if finish is not None:
                return finish

    async def _prepare(self, progress: TaskProgress) -> FinishTask | None:
        await self._enter(TaskState.PREPARING)
        prepared = await self._on_any_node("prepare", self._task, Prepared)
        if prepared.problem is not None:
            return self._ended(TaskState.FAILED, "environment_failed", prepared.problem)
        progress.phase = Phase.PLAN
        return None

    async def _plan(self, progress: TaskProgress) -> FinishTask | None:
        """Run the Planner's thread until it submits a plan. If the history is full first, the phase stays ``plan``."""
        await self._enter(TaskState.PLANNING)
        opening = OpenThread(task=self._task, role="planner", revision=progress.revision, reason=progress.reason)
        planner = await self._on_any_node("open_thread", opening, ThreadRef)
        run = await run_thread(self._control, planner, progress.planner_step)
        progress.planner_step = run.step
        if run.outcome is not None:
            progress.phase = Phase.APPROVE if run.outcome.unapproved else Phase.WORK
        elif not run.suspended:
            return self._ended(
                TaskState.FAILED, "no_plan", "The Planner did not submit a plan that can be carried out."
            )
        return None

    async def _approve(self, progress: TaskProgress) -> FinishTask | None:
        """Wait for a person's decision on the plan: go on with it, perhaps edited, or plan again for the person's reason."""
        request = RequestPlanApproval(task=self._task, revision=progress.revision)
        approval_id = await run_store_activity("request_plan_approval", request, str)
        # A message from a person does not decide; it is read at the next step.
        if not await wait_for_decisions(self._control, self._task, [approval_id], interruptible=False):
            return None
        verdict = await run_store_activity(
            "plan_verdict", TaskApprovals(task=self._task, approvals=[approval_id]), PlanVerdict
        )
        progress.last_revision = max(progress.last_revision, verdict.last_revision)
        match verdict.state:
            case "approved":
                progress.revision = verdict.revision
                progress.phase = Phase.WORK
            case "rejected":
                # A person may reject as often as they like: this does not count as a plan that was tried.
                self._plan_anew(verdict.reason or "")
            case "expired":
                await self._on_any_node("hand_over", self._task, NoneType)
                return self._ended(TaskState.FAILED, "approval_expired", verdict.reason)
            case "withdrawn":
                # By a cancellation or a rewind, which is on its way.
                await workflow.wait_condition(lambda: self._cancelled or bool(self._rewinds))
        return None

    async def _work(self, progress: TaskProgress) -> FinishTask | None:
        """Run the plan's subtasks; after the last one, go on to verify."""
        await self._enter(TaskState.RUNNING)
        graph = await run_store_activity("load_plan", LoadPlan(task=self._task, revision=progress.revision), PlanGraph)
        if graph.unapproved:
            # A rewind or a fork to where the plan was handed over begins here, and has it approved anew.
            progress.phase = Phase.APPROVE
            return None
        problems = await self._subtasks.run_plan(graph, progress)
        if problems:
            return await self._replan("\n\n".join(problems))
        if len(progress.done) == len(graph.subtasks):
            progress.phase = Phase.VERIFY
        return None

    async def _verify(self, progress: TaskProgress) -> FinishTask | None:
        await self._enter(TaskState.VERIFYING)
        request = Verify(task=self._task, revision=progress.revision, attempt=progress.verifications + 1)
        verification = await self._on_any_node("verify", request, Verification)
        progress.verifications += 1
        if not verification.passed:
            return await self._replan(verification.problem or "")
        await self._on_any_node("hand_over", self._task, NoneType)
        finish = self._ended(TaskState.SUCCEEDED)
        finish.verified = verification.verified
        return finish

    async def _replan(self, reason: str) -> FinishTask | None:
        """Go back to planning with the reason; after ``ReviewPolicy.max_plans`` plans the task has failed."""
        plans = self._progress.plans
        if plans >= ReviewPolicy().max_plans:
            await self._on_any_node("hand_over", self._task, NoneType)
            return self._ended(
                TaskState.FAILED, "not_accepted", f"{plans} plans were tried. The last one ended so:\n{reason}"
            )
        self._plan_anew(reason)
        self._progress.plans = plans + 1
        return None

    def _plan_anew(self, reason: str) -> None:
        progress = self._progress
        progress.last_revision += 1
        progress.revision = progress.last_revision
        progress.reason = reason
        progress.phase = Phase.PLAN
        progress.planner_step = 0
        progress.done = []
        progress.subtasks = {}

    async def _on_any_node(self, activity: str, argument: object, result: type[R]) -> R:
        """Run an activity whose sandbox, if it has one, is its own."""
        return await run_sandbox_activity(activity, argument, result, SandboxRoute(self._task.sandbox_queue))

    async def _enter(self, state: TaskState) -> None:
        occasion = f"{self._progress.epoch}:{self._progress.revision}"
        await run_store_activity("change_state", ChangeState(task=self._task, state=state, occasion=occasion), NoneType)

    def _ended(self, state: TaskState, code: str | None = None, message: str | None = None) -> FinishTask:
        return FinishTask(
            task=self._task,
            state=state,
            failure_code=code,
            failure_message=message,
            retryable=state == TaskState.ERRORED,
        )


def describe(error: FailureError) -> tuple[str, str]:
    """Code and message of what went wrong, from the failure that an activity raised."""
    cause: BaseException | None = error
    while isinstance(cause, ActivityError | ChildWorkflowError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ApplicationError):
        return cause.type or "platform_error", cause.message
    return "platform_error", str(cause)
