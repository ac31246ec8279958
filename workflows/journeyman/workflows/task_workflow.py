"""One task from submission to a verified end: prepare, plan, work, verify, hand over."""

import asyncio
from types import NoneType

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, ChildWorkflowError, FailureError

with workflow.unsafe.imports_passed_through():
    from journeyman.agents.plans import ready_subtasks
    from journeyman.agents.review import ReviewPolicy
    from journeyman.platform.kit.names import (
        SIGNAL_CANCEL,
        SIGNAL_PAUSE,
        SIGNAL_RESUME,
        TASK_WORKFLOW,
        WORKFLOW_TASK_TIMEOUT,
        Queue,
        subtask_workflow_id,
    )
    from journeyman.platform.tasks.contract import Phase, StartTask, TaskProgress, TaskState

from journeyman.workflows import timing
from journeyman.workflows.agent_loop import Control, converse, in_sandbox, store
from journeyman.workflows.subtask_workflow import SubtaskWorkflow
from journeyman.workflows.types import (
    Finish,
    LoadPlan,
    OpenThread,
    PlanGraph,
    Prepared,
    RunSubtask,
    StateChange,
    SubtaskProgress,
    SubtaskResult,
    TaskRef,
    ThreadRef,
    Verification,
    Verify,
)


@workflow.defn(name=TASK_WORKFLOW)
class TaskWorkflow:
    """The workflow's id is the task's id. It always completes: how the task ended is in the store."""

    @workflow.init
    def __init__(self, start: StartTask) -> None:
        self._task = TaskRef(task_id=start.task_id, project_id=start.project_id)
        self._progress = start.progress.model_copy()
        self._control = Control()
        self._control.paused_for = start.progress.paused_for
        self._cancelled = False
        self._main: asyncio.Task[Finish | None] | None = None
        self._child: str | None = None

    @workflow.signal(name=SIGNAL_CANCEL)
    def cancel(self) -> None:
        self._cancelled = True
        if self._main is not None:
            self._main.cancel()

    @workflow.signal(name=SIGNAL_PAUSE)
    async def pause(self, reason: str) -> None:
        self._control.pause(reason)
        if self._child is not None:
            await workflow.get_external_workflow_handle(self._child).signal(SIGNAL_PAUSE, reason)

    @workflow.signal(name=SIGNAL_RESUME)
    async def resume(self) -> None:
        self._control.resume()
        if self._child is not None:
            await workflow.get_external_workflow_handle(self._child).signal(SIGNAL_RESUME)

    @workflow.query
    def progress(self) -> TaskProgress:
        return self._progress

    @workflow.run
    async def run(self, start: StartTask) -> str:
        finish = await self._outcome()
        if finish is None:
            self._progress.paused_for = self._control.paused_for
            await workflow.wait_condition(workflow.all_handlers_finished)
            if not self._cancelled:
                workflow.continue_as_new(start.model_copy(update={"progress": self._progress}))
            finish = self._ended(TaskState.CANCELLED)
        # Beyond cancellation's reach: however the task ended, its sandboxes are released and its end is written.
        await asyncio.shield(self._close(finish))
        return finish.state

    async def _close(self, finish: Finish) -> None:
        """Never give up on writing the end: a task without one would look alive for ever."""
        try:
            await in_sandbox("release_sandboxes", self._task, NoneType)
        except ActivityError:
            workflow.logger.exception("sandboxes were not released; they end with their leases")
        while True:
            try:
                return await store("finish_task", finish)
            except ActivityError:
                workflow.logger.exception("the end of the task could not be written; trying again")
                await workflow.sleep(timing.FINISH_AGAIN)

    async def _outcome(self) -> Finish | None:
        """How the task ended; None when the run's history is full and a new run is to go on."""
        if self._cancelled:
            return self._ended(TaskState.CANCELLED)
        self._main = asyncio.create_task(self._carry())
        try:
            return await self._main
        except (asyncio.CancelledError, CancelledError):
            return self._ended(TaskState.CANCELLED)
        except FailureError as error:
            if self._cancelled:
                return self._ended(TaskState.CANCELLED)
            code, message = describe(error)
            return self._ended(TaskState.ERRORED, code, message)

    async def _carry(self) -> Finish | None:
        progress = self._progress
        while True:
            await self._control.gate()
            if workflow.info().is_continue_as_new_suggested():
                return None
            match progress.phase:
                case Phase.PREPARE:
                    finish = await self._prepare(progress)
                case Phase.PLAN:
                    finish = await self._plan(progress)
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
            progress.phase = Phase.WORK
        elif not talk.suspended:
            return self._ended(
                TaskState.FAILED, "no_plan", "The Planner did not submit a plan that can be carried out."
            )
        return None

    async def _work(self, progress: TaskProgress) -> Finish | None:
        """Carry out one subtask that is ready, in the order of the plan's graph; after the last, go on to verify."""
        await self._enter(TaskState.RUNNING)
        graph = await workflow.execute_activity(
            "load_plan",
            LoadPlan(task=self._task, revision=progress.revision),
            result_type=PlanGraph,
            task_queue=Queue.ORCHESTRATION,
            start_to_close_timeout=timing.SHORT,
            heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
            retry_policy=timing.STORES,
        )
        for _ in range(len(graph.subtasks)):
            ready = ready_subtasks(graph, progress.done)
            if not ready:
                break
            result = await self._subtask(ready[0].id)
            if not result.completed:
                return await self._replan(f"Subtask {result.subtask_id} was given up. {result.problem}")
            progress.done.append(result.subtask_id)
            await self._control.gate()
        progress.phase = Phase.VERIFY
        return None

    async def _verify(self, progress: TaskProgress) -> Finish | None:
        await self._enter(TaskState.VERIFYING)
        wanted = Verify(task=self._task, revision=progress.revision, attempt=progress.revision)
        verification = await in_sandbox("verify", wanted, Verification)
        if not verification.passed:
            return await self._replan(verification.problem or "")
        await in_sandbox("hand_over", self._task, NoneType)
        await store("reflect", self._task)
        finish = self._ended(TaskState.SUCCEEDED)
        finish.verified = verification.verified
        return finish

    async def _replan(self, reason: str) -> Finish | None:
        """Go back to planning with what went wrong; after the last revision, the task has failed."""
        progress = self._progress
        if progress.revision >= ReviewPolicy().max_revisions:
            await in_sandbox("hand_over", self._task, NoneType)
            return self._ended(
                TaskState.FAILED,
                "not_accepted",
                f"{progress.revision} plans were tried. The last one ended so:\n{reason}",
            )
        progress.revision += 1
        progress.reason = reason
        progress.phase = Phase.PLAN
        progress.planner_step = 0
        progress.done = []
        return None

    async def _subtask(self, subtask_id: str) -> SubtaskResult:
        subtask = RunSubtask(
            task=self._task,
            revision=self._progress.revision,
            subtask_id=subtask_id,
            progress=SubtaskProgress(paused_for=self._control.paused_for),
        )
        self._child = subtask_workflow_id(self._task.task_id, subtask_id, subtask.revision)
        try:
            return await workflow.execute_child_workflow(
                SubtaskWorkflow.run,
                subtask,
                id=self._child,
                task_queue=Queue.ORCHESTRATION,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
                # One that runs was started by a run of this task that was reset: it is of no use any more.
                id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING,
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
        finally:
            self._child = None

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
