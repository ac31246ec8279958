"""State changes, pauses and the end of a task."""

from temporalio import activity

from journeyman.platform.branching import repository as branching
from journeyman.platform.budgets import service as budgets
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict
from journeyman.platform.leases.service import Leases
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.plans import repository as plans
from journeyman.platform.steering import repository as steering
from journeyman.platform.tasks.contract import TERMINAL, TaskState
from journeyman.platform.tasks.repository import for_step, lock_task
from journeyman.workflows.activities.approvals import unapproved
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import (
    ChangeState,
    FinishTask,
    LoadPlan,
    Pause,
    PlanGraph,
    PlanNode,
    TaskClosing,
    TaskRef,
)


class LifecycleActivities:
    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases

    @activity.defn
    @beating
    async def change_state(self, change: ChangeState) -> None:
        """Change the task's state, once for each occasion. Raises :class:`Conflict` (``superseded``) after a rewind."""
        async with self._database.transaction() as session:
            task_id = change.task.task_id
            if (await lock_task(session, task_id)).epoch != change.task.epoch:
                raise Conflict(f"Task {task_id} was rewound; it is not {change.state} any more.", code="superseded")
            step_key = step_keys.state_change(task_id, change.occasion, change.state) if change.occasion else None
            await lifecycle.transition(session, task_id, TaskState(change.state), step_key=step_key)

    @activity.defn
    @beating
    async def pause_task(self, pause: Pause) -> None:
        """Store that the task is paused, and why. Race: a limit may have been raised meanwhile; the task is resumed at once then."""
        task_id, key = pause.task.task_id, pause.step_key
        async with self._database.transaction() as session:
            if pause.reason == "budget":
                await budgets.exhausted(session, task_id, pause.facts, pause.detail or "", step_key=key)
            else:
                detail = {"detail": pause.detail} if pause.detail else {}
                await lifecycle.pause(session, task_id, pause.reason, detail, step_key=key)

    @activity.defn
    @beating
    async def end_pause(self, pause: Pause) -> None:
        """Remove this pause from the store, if it is still there: the resume may have come before the pause was stored."""
        async with self._database.transaction() as session:
            await lifecycle.resume(session, pause.task.task_id, only_step_key=pause.step_key)

    @activity.defn
    @beating
    async def finish_task(self, finish: FinishTask) -> TaskClosing:
        """Write the task's end, unless a person asked for a cancellation, a rewind or an unread message before."""
        failure = None
        if finish.failure_code is not None:
            failure = {
                "code": finish.failure_code,
                "message": finish.failure_message or "",
                "retryable": finish.retryable,
            }
        async with self._database.transaction() as session:
            task = await lock_task(session, finish.task.task_id)
            if TaskState(task.state) in TERMINAL:
                # Cancelled while it was queued and its workflow was about to begin: the end is written.
                return TaskClosing(state=task.state)
            if task.cancel_requested_at is not None:
                await lifecycle.transition(session, task.id, TaskState.CANCELLED)
                return TaskClosing(state=TaskState.CANCELLED)
            if task.epoch != finish.task.epoch:
                raise Conflict(f"Task {task.id} was rewound; this end is not its own.", code="superseded")
            rewind_id = await branching.pending_rewind(session, task.id)
            if rewind_id is not None:
                return TaskClosing(rewind_id=rewind_id)
            if finish.state == TaskState.SUCCEEDED and await steering.any_unread(session, task.id):
                return TaskClosing(unread=True)
            await lifecycle.transition(
                session, task.id, TaskState(finish.state), failure=failure, verified=finish.verified
            )
            return TaskClosing(state=finish.state)

    @activity.defn
    @beating
    async def release_sandboxes(self, task: TaskRef) -> None:
        """End all sandboxes of the task."""
        await self._leases.release_all(task.task_id)

    @activity.defn
    @beating
    async def load_plan(self, request: LoadPlan) -> PlanGraph:
        """The graph of the plan, without its texts, and whether it still needs a person's approval."""
        async with self._database.transaction() as session:
            plan = await plans.get_plan(session, request.task.task_id, request.revision)
            task = await for_step(session, request.task.task_id)
            waits = await unapproved(session, task, request.revision)
        nodes = [PlanNode(id=subtask["id"], depends_on=subtask["depends_on"]) for subtask in plan.subtasks]
        return PlanGraph(revision=plan.revision, unapproved=waits, subtasks=nodes)
