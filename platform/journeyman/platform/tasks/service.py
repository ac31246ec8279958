"""Reading a project's tasks, and refusing what a task's state forbids."""

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.kit.ids import is_id
from journeyman.platform.tasks import repository
from journeyman.platform.tasks.contract import TERMINAL, TaskState
from journeyman.platform.tasks.models import Task


async def read(session: AsyncSession, project_id: str, task_id: str) -> Task:
    """The project's task. Raises :class:`NotFound`, also for another project's."""
    task = await repository.get(session, project_id, task_id) if is_id("task", task_id) else None
    if task is None:
        raise _unknown(task_id)
    return task


async def lock(session: AsyncSession, project_id: str, task_id: str) -> Task:
    """The project's task, locked until the transaction ends. Raises :class:`NotFound`, also for another project's."""
    if not is_id("task", task_id):
        raise _unknown(task_id)
    return await repository.lock_task(session, task_id, project_id=project_id)


def refuse_ended(task: Task, meaning: str) -> None:
    """Raise :class:`Conflict` with code ``task_ended`` for a task that has ended; ``meaning``: what follows from it."""
    if TaskState(task.state) in TERMINAL:
        raise Conflict(f"The task has ended ({task.state}); {meaning}.", code="task_ended", state=task.state)


def refuse_ending(task: Task, meaning: str) -> None:
    """As :func:`refuse_ended`, also for a task that is being cancelled."""
    refuse_ended(task, meaning)
    if task.cancel_requested_at is not None:
        raise Conflict(f"The task is being cancelled; {meaning}.", code="task_ended", state=task.state)


def _unknown(task_id: str) -> NotFound:
    return NotFound(f"This project has no task {task_id[:80]}.", code="task_not_found")
