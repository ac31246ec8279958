"""What people may do with a task that was submitted: cancel, pause, resume, change its budget."""

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals.withdrawal import withdraw
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.names import SIGNAL_PAUSE, SIGNAL_RESUME
from journeyman.platform.lifecycle import transitions
from journeyman.platform.outbox import service as outbox
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.contract import TERMINAL, TaskState
from journeyman.platform.tasks.models import Task


async def cancel(session: AsyncSession, project_id: str, task_id: str) -> Task:
    """Ask for the task's end; once more, or of a task that has ended, changes nothing.

    A task that nothing has been done for is cancelled here and now, whether Temporal is up or not. Otherwise its
    workflow is told, and ends it after the step it is in.
    """
    task = await tasks.lock(session, project_id, task_id)
    state = TaskState(task.state)
    if state in TERMINAL or task.cancel_requested_at is not None:
        return task
    task.cancel_requested_at = now()
    await withdraw(session, task, "cancelled")
    if not await outbox.withdraw_start(session, task_id):
        # A workflow may exist: it hears of the end even if this transaction is what ends the task.
        await outbox.enqueue_cancel(session, project_id, task_id)
    if state == TaskState.QUEUED:
        await transitions.end_cancelled(session, task_id)
    return await _refreshed(session, task)


async def pause(session: AsyncSession, project_id: str, task_id: str) -> Task:
    """Have the task stop before its next step; once more changes nothing. Raises :class:`Conflict` for one that has ended.

    One that waits for something else, such as the model, does not go on by itself then.
    """
    task = await tasks.lock(session, project_id, task_id)
    tasks.refuse_ended(task, "it cannot be paused")
    if await transitions.pause(session, task_id, "user"):
        await outbox.enqueue_signal(session, project_id, task_id, SIGNAL_PAUSE, "user")
    return await _refreshed(session, task)


async def resume(session: AsyncSession, project_id: str, task_id: str) -> Task:
    """Have a paused task go on, whatever it is paused for; one that is not paused is left as it is.

    One that is out of budget pauses again at its next step. Raises :class:`Conflict` for one that has ended.
    """
    task = await tasks.lock(session, project_id, task_id)
    tasks.refuse_ended(task, "it cannot be resumed")
    if await transitions.resume(session, task_id):
        await outbox.enqueue_signal(session, project_id, task_id, SIGNAL_RESUME)
    return await _refreshed(session, task)


async def change_budget(session: AsyncSession, project_id: str, task_id: str, changes: Json) -> Task:
    """Set the limits that ``changes`` names; null takes one away. A task that waits for its budget goes on; one that waits
    at a limit of its project does not.

    Raises :class:`Conflict` for a task that has ended.
    """
    task = await tasks.lock(session, project_id, task_id)
    tasks.refuse_ended(task, "it cannot be given another budget")
    budget = {name: limit for name, limit in {**task.budget, **changes}.items() if limit is not None}
    if budget != task.budget:
        task.budget = budget
        await append(session, task_id, EventType.BUDGET_CHANGED, {"budget": budget})
    waits_for_project = (task.paused_detail or {}).get("level") == "project"
    if not waits_for_project and await transitions.resume(session, task_id, only_reason="budget"):
        await outbox.enqueue_signal(session, project_id, task_id, SIGNAL_RESUME)
    return await _refreshed(session, task)


async def _refreshed(session: AsyncSession, task: Task) -> Task:
    await session.flush()
    await session.refresh(task)
    return task
