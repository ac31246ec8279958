"""One task from submission to a verified end: prepare, plan, work, verify, hand over."""

import asyncio
from types import NoneType

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, ChildWorkflowError, FailureError

with workflow.unsafe.imports_passed_through():
    from journeyman.agents.plans import ready_subtasks
    from journeyman.platform.kit.names import (
        SIGNAL_CANCEL,
        SIGNAL_PAUSE,
        SIGNAL_RESUME,
        TASK_WORKFLOW,
        Queue,
        subtask_workflow_id,
    )
    from journeyman.platform.tasks.contract import StartTask, TaskState

from journeyman.workflows import timing
from journeyman.workflows.agent_loop import Control, converse, in_sandbox, store
from journeyman.workflows.subtask_workflow import SubtaskWorkflow
from journeyman.workflows.types import (
    Finish,
    OpenThread,
    PlanGraph,
    Prepared,
    RunSubtask,
    StateChange,
    SubtaskResult,
    TaskRef,
    ThreadRef,
    Verification,
    Verify,
)


@workflow.defn(name=TASK_WORKFLOW)
class TaskWorkflow:
    """The workflow's id is the task's id. It always completes: how the task ended is in the store."""

    def __init__(self) -> None:
        self._control = Control()
        self._cancelled = False
        self._main: asyncio.Task[Finish] | None = None
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

    @workflow.run
    async def run(self, start: StartTask) -> str:
        task = TaskRef(task_id=start.task_id, project_id=start.project_id)
        if self._cancelled:
            finish = Finish(task=task, state=TaskState.CANCELLED)
        else:
            self._main = asyncio.create_task(self._carry(task))
            finish = await self._outcome(task)
        # Beyond cancellation's reach: however the task ended, its end is written and its sandboxes are released.
        await asyncio.shield(in_sandbox("release_sandboxes", task, NoneType))
        await asyncio.shield(store("finish_task", finish))
        return finish.state

    async def _outcome(self, task: TaskRef) -> Finish:
        assert self._main is not None
        try:
            return await self._main
        except (asyncio.CancelledError, CancelledError):
            return Finish(task=task, state=TaskState.CANCELLED)
        except FailureError as error:
            if self._cancelled:
                return Finish(task=task, state=TaskState.CANCELLED)
            code, message, retryable = describe(error)
            return Finish(
                task=task,
                state=TaskState.ERRORED,
                failure_code=code,
                failure_message=message,
                retryable=retryable,
            )

    async def _carry(self, task: TaskRef) -> Finish:
        await store("change_state", StateChange(task=task, state=TaskState.PREPARING))
        prepared = await in_sandbox("prepare", task, Prepared)
        if prepared.problem is not None:
            return _failed(task, "environment_failed", prepared.problem)
        reason: str | None = None
        for revision in range(1, timing.PLAN_REVISIONS + 1):
            await self._control.gate()
            await store("change_state", StateChange(task=task, state=TaskState.PLANNING))
            if not await self._plan(task, revision, reason):
                return _failed(task, "no_plan", "The Planner did not submit a plan that can be carried out.")
            await store("change_state", StateChange(task=task, state=TaskState.RUNNING))
            reason = await self._work(task, revision)
            if reason is not None:
                continue
            await store("change_state", StateChange(task=task, state=TaskState.VERIFYING))
            verification = await in_sandbox(
                "verify", Verify(task=task, revision=revision, attempt=revision), Verification
            )
            if verification.passed:
                await in_sandbox("hand_over", task, NoneType)
                await store("reflect", task)
                return Finish(task=task, state=TaskState.SUCCEEDED, verified=verification.verified)
            reason = verification.problem
        await in_sandbox("hand_over", task, NoneType)
        return _failed(
            task, "not_accepted", f"{timing.PLAN_REVISIONS} plans were tried. The last one ended so:\n{reason}"
        )

    async def _plan(self, task: TaskRef, revision: int, reason: str | None) -> bool:
        planner = await in_sandbox(
            "open_thread", OpenThread(task=task, role="planner", revision=revision, reason=reason), ThreadRef
        )
        plan, _ = await converse(self._control, planner, 0)
        return plan is not None

    async def _work(self, task: TaskRef, revision: int) -> str | None:
        """Carry out the plan in the order of its graph; returns why it was given up, or None when all is done."""
        graph = await workflow.execute_activity(
            "load_plan",
            RunSubtask(task=task, revision=revision, subtask_id=""),
            result_type=PlanGraph,
            task_queue=Queue.ORCHESTRATION,
            start_to_close_timeout=timing.SHORT,
            retry_policy=timing.STORES,
        )
        done: set[str] = set()
        while ready := ready_subtasks(graph, done):
            await self._control.gate()
            result = await self._subtask(RunSubtask(task=task, revision=revision, subtask_id=ready[0].id))
            if not result.completed:
                return f"Subtask {result.subtask_id} was given up. {result.problem}"
            done.add(result.subtask_id)
        return None

    async def _subtask(self, subtask: RunSubtask) -> SubtaskResult:
        self._child = subtask_workflow_id(subtask.task.task_id, subtask.subtask_id, subtask.revision)
        try:
            return await workflow.execute_child_workflow(
                SubtaskWorkflow.run,
                subtask,
                id=self._child,
                task_queue=Queue.ORCHESTRATION,
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
        finally:
            self._child = None


def _failed(task: TaskRef, code: str, message: str) -> Finish:
    return Finish(task=task, state=TaskState.FAILED, failure_code=code, failure_message=message)


def describe(error: FailureError) -> tuple[str, str, bool]:
    """Say what went wrong: code, message and whether trying again may help, from the failure that an activity raised."""
    cause: BaseException | None = error
    while isinstance(cause, ActivityError | ChildWorkflowError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ApplicationError):
        return cause.type or "platform_error", cause.message, True
    return "platform_error", str(cause), True
