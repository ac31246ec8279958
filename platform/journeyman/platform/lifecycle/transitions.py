"""Moving a task from state to state, each move with its event in one transaction."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals.withdrawal import withdraw
from journeyman.platform.events.log import append, known, newest_step_key
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.errors import Conflict
from journeyman.platform.kit.metrics import TASK_PAUSES, TASK_TRANSITIONS, count_after_commit
from journeyman.platform.lifecycle.open_calls import end_open_calls
from journeyman.platform.tasks.contract import TERMINAL, TRANSITIONS, TaskState
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task

_ENDINGS = {
    TaskState.SUCCEEDED: EventType.TASK_COMPLETED,
    TaskState.FAILED: EventType.TASK_FAILED,
    TaskState.ERRORED: EventType.TASK_ERRORED,
    TaskState.CANCELLED: EventType.TASK_CANCELLED,
}


async def transition(
    session: AsyncSession,
    task_id: str,
    to: TaskState,
    *,
    failure: dict[str, Any] | None = None,
    verified: bool | None = None,
    summary: str | None = None,
    step_key: str | None = None,
) -> Task:
    """Move the task on and write what happened; the state it is in already is left as it is, without an event.

    With a ``step_key`` under which the task was moved before, nothing happens: a workflow that goes once more over what it
    did does not turn the task back.

    A move to a terminal state writes ``task.state_changed`` and then, as the log's last event, the one that names the
    ending. Raises :class:`Conflict` for a move that ``TRANSITIONS`` does not know, :class:`NotFound` for no such task.
    """
    task = await lock_task(session, task_id)
    current = TaskState(task.state)
    if current == to or (step_key is not None and await known(session, step_key)):
        return task
    if to not in TRANSITIONS[current]:
        raise Conflict(f"Task {task_id} is {current}; it cannot become {to}.", code="illegal_transition")
    moment = now()
    if task.paused_reason is not None and to in TERMINAL:
        task.paused_reason = None
        task.paused_detail = None
    if to in TERMINAL:
        await withdraw(session, task, "cancelled" if to == TaskState.CANCELLED else "ended")
        await end_open_calls(session, task_id)
    await append(
        session, task_id, EventType.TASK_STATE_CHANGED, {"from": current.value, "to": to.value}, step_key=step_key
    )
    if to in _ENDINGS:
        data: dict[str, Any] = {"state": to.value, "verified": bool(verified)}
        if failure is not None:
            data["failure"] = failure
        if summary is not None:
            data["summary"] = summary
        await append(session, task_id, _ENDINGS[to], data)
        task.finished_at = moment
        task.verified = bool(verified)
        task.failure = failure
        task.summary = summary
    if current == TaskState.QUEUED and task.started_at is None and to not in TERMINAL:
        task.started_at = moment
    task.state = to.value
    count_after_commit(session, TASK_TRANSITIONS, to.value)
    await session.flush()
    return task


async def pause(
    session: AsyncSession,
    task_id: str,
    reason: str,
    data: dict[str, Any] | None = None,
    *,
    step_key: str | None = None,
) -> bool:
    """Note beside the state that the task waits, and why. Returns whether that was news; never again under a ``step_key``.

    A person's pause outranks every other: what else is in the way shows again once the person lets the task go on.
    """
    task = await lock_task(session, task_id)
    if TaskState(task.state) in TERMINAL or task.paused_reason in {reason, "user"}:
        return False
    if step_key is not None and await known(session, step_key):
        return False
    task.paused_reason = reason
    task.paused_detail = data or None
    count_after_commit(session, TASK_PAUSES, reason)
    await append(session, task_id, EventType.TASK_PAUSED, {"reason": reason, **(data or {})}, step_key=step_key)
    return True


async def resume(
    session: AsyncSession, task_id: str, *, only_reason: str | None = None, only_step_key: str | None = None
) -> bool:
    """Take the pause away; only one for this reason, or only the one noted under this step key, if that is given.

    Returns whether there was one.
    """
    task = await lock_task(session, task_id)
    reason = task.paused_reason
    if reason is None or TaskState(task.state) in TERMINAL or only_reason not in {None, reason}:
        return False
    if only_step_key is not None and await newest_step_key(session, task_id, EventType.TASK_PAUSED) != only_step_key:
        return False
    task.paused_reason = None
    task.paused_detail = None
    await append(session, task_id, EventType.TASK_RESUMED, {"reason": reason})
    return True


async def end_cancelled(session: AsyncSession, task_id: str) -> Task:
    """End a task as ``cancelled``; one that has ended stays as it is."""
    task = await lock_task(session, task_id)
    if TaskState(task.state) in TERMINAL:
        return task
    return await transition(session, task_id, TaskState.CANCELLED)
