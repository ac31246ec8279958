"""One task from submission to a verified end: prepare, plan, work, verify, hand over."""

import asyncio
from types import NoneType

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
from journeyman.workflows.agent_loop import Control, ask_stores, converse, in_sandbox, store, until_decided
from journeyman.workflows.continuation import go_on, is_due
from journeyman.workflows.crew import Crew
from journeyman.workflows.types import (
    ApplyRewind,
    Closed,
    Finish,
    LoadPlan,
    OpenThread,
    PlanGraph,
    PlanToApprove,
    PlanVerdict,
    Prepared,
    StateChange,
    TaskRef,
    ThreadRef,
    Verification,
    Verify,
    Waiting,
)

REWINDS_REMEMBERED = 50
"""Ids of applied rewinds that a run carries over, so that a signal delivered twice goes back once."""


@workflow.defn(name=TASK_WORKFLOW)
class TaskWorkflow:
    """The workflow's id is the task's id. It always completes: how the task ended is in the store."""

    @workflow.init
    def __init__(self, start: StartTask) -> None:
        self._task = TaskRef(task_id=start.task_id, project_id=start.project_id, epoch=start.progress.epoch)
        self._progress = start.progress.model_copy(deep=True)
        self._control = Control(start.progress.paused_for, self._spread)
        self._crew = Crew(self._task, self._control)
        self._cancelled = False
        self._rewinds: list[str] = []
        self._main: asyncio.Task[Finish | None] | None = None

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
        await self._crew.tell_standing()

    @workflow.signal(name=SIGNAL_RESUME)
    async def resume(self) -> None:
        self._control.resume()
        await self._crew.tell_standing()

    @workflow.signal(name=SIGNAL_INTERRUPT)
    async def interrupt(self) -> None:
        self._control.interrupt()
        await self._crew.tell(SIGNAL_INTERRUPT)

    @workflow.signal(name=SIGNAL_DECIDED)
    async def decided(self, approval_id: str) -> None:
        self._control.hear(approval_id)
        await self._crew.tell(SIGNAL_DECIDED, approval_id)

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
                    return closed.state
                self._reopen(closed)
            await workflow.wait_condition(workflow.all_handlers_finished)
            await self._go_back()
            if self._cancelled or self._rewinds:
                continue
            self._progress.paused_for = self._control.paused_for
            go_on(start.model_copy(update={"progress": self._progress}))

    def _stop(self) -> None:
        """End what is under way, once: a second cancellation would cut short the clearing up after the first."""
        if self._main is not None and not self._main.cancelling():
            self._main.cancel()

    def _diverted(self) -> bool:
        """Whether a person wants something else than the task's course."""
        return self._cancelled or bool(self._rewinds)

    async def _spread(self, reason: str) -> None:
        """The Planner is alone while it talks: nobody else has to hear of its pause."""

    async def _outcome(self) -> Finish | None:
        """How the task ended; None when it is to go on in a new run: the history is full, or the task goes back."""
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

    async def _close(self, finish: Finish) -> Closed:
        """Never give up on writing the end: a task without one would look alive for ever."""
        try:
            await in_sandbox("release_sandboxes", self._task, NoneType)
        except ActivityError:
            workflow.logger.exception("sandboxes were not released; they end with their leases")
        while True:
            try:
                return await ask_stores("finish_task", finish, Closed)
            except ActivityError:
                workflow.logger.exception("the end of the task could not be written; trying again")
                await workflow.sleep(timing.FINISH_AGAIN)

    def _reopen(self, closed: Closed) -> None:
        """The end did not come to be: a person had asked for something before it was written."""
        if closed.rewind_id is not None:
            self.rewind(closed.rewind_id)
        elif closed.unread:
            self._plan_anew("A person sent a message when the work was already verified. Plan what it asks for.")

    async def _go_back(self) -> None:
        """Apply the rewinds that were asked for, in order. What they came to is where the next run begins."""
        while self._rewinds and not self._cancelled:
            rewind_id = self._rewinds.pop(0)
            wanted = ApplyRewind(task=self._task, rewind_id=rewind_id)
            before, changes = self._progress, self._control.changes
            self._progress = await in_sandbox("apply_rewind", wanted, TaskProgress)
            if self._progress.paused_for is None and self._control.changes == changes:
                # The reason to pause was undone with the rest. One that came meanwhile holds.
                self._control.resume()
            self._progress.rewinds = [*before.rewinds, rewind_id][-REWINDS_REMEMBERED:]
            # One may have been cut short: its receipts stay, and are not taken for those of the next.
            self._progress.verifications = before.verifications + 1
            self._task.epoch = self._progress.epoch

    async def _carry(self) -> Finish | None:
        progress = self._progress
        while True:
            await self._control.gate()
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

    async def _prepare(self, progress: TaskProgress) -> Finish | None:
        await self._enter(TaskState.PREPARING)
        prepared = await in_sandbox("prepare", self._task, Prepared)
        if prepared.problem is not None:
            return self._ended(TaskState.FAILED, "environment_failed", prepared.problem)
        progress.phase = Phase.PLAN
        return None

    async def _plan(self, progress: TaskProgress) -> Finish | None:
        """Talk with the Planner until it submits. With the history full first, the phase stays ``plan``."""
        await self._enter(TaskState.PLANNING)
        opening = OpenThread(task=self._task, role="planner", revision=progress.revision, reason=progress.reason)
        planner = await in_sandbox("open_thread", opening, ThreadRef)
        talk = await converse(self._control, planner, progress.planner_step)
        progress.planner_step = talk.step
        if talk.outcome is not None:
            progress.phase = Phase.APPROVE if talk.outcome.unapproved else Phase.WORK
        elif not talk.suspended:
            return self._ended(
                TaskState.FAILED, "no_plan", "The Planner did not submit a plan that can be carried out."
            )
        return None

    async def _approve(self, progress: TaskProgress) -> Finish | None:
        """Have a person decide on the plan: go on with it, perhaps changed, or plan again for the person's reason."""
        wanted = PlanToApprove(task=self._task, revision=progress.revision)
        approval_id = await ask_stores("ask_for_plan", wanted, str)
        # A message from a person does not decide; it is read at the next step.
        if not await until_decided(self._control, self._task, [approval_id], interruptible=False):
            return None
        verdict = await ask_stores("plan_verdict", Waiting(task=self._task, approvals=[approval_id]), PlanVerdict)
        progress.last_revision = max(progress.last_revision, verdict.last_revision)
        match verdict.state:
            case "approved":
                progress.revision = verdict.revision
                progress.phase = Phase.WORK
            case "rejected":
                # A person may reject as often as they like: this does not count as a plan that was tried.
                self._plan_anew(verdict.reason or "")
            case "expired":
                await in_sandbox("hand_over", self._task, NoneType)
                return self._ended(TaskState.FAILED, "approval_expired", verdict.reason)
            case "withdrawn":
                # By a cancellation or a rewind, which is on its way.
                await workflow.wait_condition(lambda: self._cancelled or bool(self._rewinds))
        return None

    async def _work(self, progress: TaskProgress) -> Finish | None:
        """Carry out the plan's graph; after the last subtask, go on to verify."""
        await self._enter(TaskState.RUNNING)
        graph = await ask_stores("load_plan", LoadPlan(task=self._task, revision=progress.revision), PlanGraph)
        if graph.unapproved:
            # A rewind or a fork to where the plan was handed over begins here, and has it approved anew.
            progress.phase = Phase.APPROVE
            return None
        problems = await self._crew.work(graph, progress)
        if problems:
            return await self._replan("\n\n".join(problems))
        if len(progress.done) == len(graph.subtasks):
            progress.phase = Phase.VERIFY
        return None

    async def _verify(self, progress: TaskProgress) -> Finish | None:
        await self._enter(TaskState.VERIFYING)
        wanted = Verify(task=self._task, revision=progress.revision, attempt=progress.verifications + 1)
        verification = await in_sandbox("verify", wanted, Verification)
        progress.verifications += 1
        if not verification.passed:
            return await self._replan(verification.problem or "")
        await in_sandbox("hand_over", self._task, NoneType)
        await store("reflect", self._task)
        finish = self._ended(TaskState.SUCCEEDED)
        finish.verified = verification.verified
        return finish

    async def _replan(self, reason: str) -> Finish | None:
        """Go back to planning with what went wrong; after the last plan, the task has failed."""
        plans = self._progress.plans
        if plans >= ReviewPolicy().max_plans:
            await in_sandbox("hand_over", self._task, NoneType)
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

    async def _enter(self, state: TaskState) -> None:
        occasion = f"{self._progress.epoch}:{self._progress.revision}"
        await store("change_state", StateChange(task=self._task, state=state, occasion=occasion))

    def _ended(self, state: TaskState, code: str | None = None, message: str | None = None) -> Finish:
        return Finish(
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
