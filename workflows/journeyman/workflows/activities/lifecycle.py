"""Activities that move a task and its subtasks on."""

from temporalio import activity

from journeyman.platform.budgets import service as budgets
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from journeyman.platform.plans import repository as plans
from journeyman.platform.sandboxes.leases import Claim, Leases
from journeyman.platform.tasks import lifecycle
from journeyman.platform.tasks.contract import TERMINAL, TaskState
from journeyman.platform.threads import repository as threads
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import (
    Finish,
    LoadPlan,
    Pause,
    PlanGraph,
    PlanNode,
    StateChange,
    SubtaskEnd,
    TaskRef,
)


class LifecycleActivities:
    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases

    @activity.defn
    @beating
    async def change_state(self, change: StateChange) -> None:
        async with self._database.transaction() as session:
            task_id = change.task.task_id
            step_key = f"{task_id}:state:{change.occasion}:{change.state}" if change.occasion else None
            await lifecycle.transition(session, task_id, TaskState(change.state), step_key=step_key)

    @activity.defn
    @beating
    async def pause_task(self, pause: Pause) -> None:
        async with self._database.transaction() as session:
            if pause.reason == "budget":
                await budgets.exhausted(session, pause.task.task_id, pause.facts, pause.detail or "")
            else:
                detail = {"detail": pause.detail} if pause.detail else {}
                await lifecycle.pause(session, pause.task.task_id, pause.reason, detail)

    @activity.defn
    @beating
    async def finish_task(self, finish: Finish) -> None:
        failure = None
        if finish.failure_code is not None:
            failure = {
                "code": finish.failure_code,
                "message": finish.failure_message or "",
                "retryable": finish.retryable,
            }
        async with self._database.transaction() as session:
            task = await lifecycle.lock_task(session, finish.task.task_id)
            if TaskState(task.state) in TERMINAL:
                # Cancelled while it was queued and its workflow was about to begin: the end is written.
                return
            if task.cancel_requested_at is not None:
                # The request was acknowledged before this end was written, however near the end it came: it counts.
                await lifecycle.transition(session, task.id, TaskState.CANCELLED)
                return
            await lifecycle.transition(
                session, finish.task.task_id, TaskState(finish.state), failure=failure, verified=finish.verified
            )

    @activity.defn
    @beating
    async def release_sandboxes(self, task: TaskRef) -> None:
        await self._leases.release_all(task.task_id)

    @activity.defn
    @beating
    async def load_plan(self, wanted: LoadPlan) -> PlanGraph:
        async with self._database.transaction() as session:
            plan = await plans.get_plan(session, wanted.task.task_id, wanted.revision)
        nodes = [PlanNode(id=subtask["id"], depends_on=subtask["depends_on"]) for subtask in plan.subtasks]
        return PlanGraph(revision=plan.revision, subtasks=nodes)

    @activity.defn
    @beating
    async def end_subtask(self, end: SubtaskEnd) -> None:
        """Take approved work over as the task's head, or note why it was given up; then give its sandbox back."""
        task_id = end.task.task_id
        coder = threads.thread_id_for(task_id, "coder", end.subtask_id, end.revision, 1)
        async with self._database.transaction() as session:
            subtask = await plans.get_subtask(session, task_id, end.revision, end.subtask_id)
            if subtask.state == "running":
                thread = await threads.get_thread(session, coder)
                if end.completed:
                    task = await lifecycle.lock_task(session, task_id)
                    task.head_snapshot = thread.snapshot
                subtask.state = "completed" if end.completed else "failed"
                subtask.snapshot = thread.snapshot
                await append(
                    session,
                    task_id,
                    EventType.SUBTASK_COMPLETED if end.completed else EventType.SUBTASK_FAILED,
                    {"subtask_id": end.subtask_id, "rounds": subtask.rounds, "snapshot": thread.snapshot}
                    | ({"problem": end.problem} if end.problem else {}),
                    thread_id=coder,
                    subtask_id=end.subtask_id,
                    step_key=f"{coder}:end",
                )
        await self._leases.release(Claim(end.task.project_id, task_id, coder, coder, end.subtask_id))
