"""What a step of a thread begins with, read at once: every step of every agent pays for each question."""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.errors import NotFound
from journeyman.platform.leases.models import SandboxLease
from journeyman.platform.ledger.limits import LIMITS
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import FOR_STEP
from journeyman.platform.tenancy.models import Project
from journeyman.platform.threads.models import Message, Thread


@dataclass(frozen=True, slots=True)
class StepStart:
    """``task`` is without what a step does not need of it, as ``lifecycle.for_step`` gives it."""

    task: Task
    thread: Thread
    sandbox_id: str | None
    """The thread's sandbox, as far as the leases know."""
    node: str | None
    """The node of that sandbox, where only one can reach it."""
    answered: bool
    """Whether the model's answer is stored already."""
    limited: bool
    """Whether the task or its project has a limit on what it may use."""


_BEGIN: Final = (
    sa.select(
        Task,
        Thread,
        SandboxLease.id,
        SandboxLease.node,
        sa.exists().where(Message.step_key == sa.bindparam("answer", type_=sa.Text)),
        sa.or_(Task.budget.bool_op("?|")(array(LIMITS)), Project.budget.bool_op("?|")(array(LIMITS))),
    )
    .options(*FOR_STEP)
    .join(Thread, Thread.task_id == Task.id)
    .join(Project, Project.id == Task.project_id)
    .outerjoin(
        SandboxLease,
        sa.and_(
            SandboxLease.task_id == Thread.task_id,
            SandboxLease.purpose == Thread.id,
            SandboxLease.state == "leased",
        ),
    )
    .where(Task.id == sa.bindparam("task_id", type_=sa.Text), Thread.id == sa.bindparam("thread_id", type_=sa.Text))
)


async def begin(session: AsyncSession, task_id: str, thread_id: str, answer: str) -> StepStart:
    """Read it. ``answer``: the key under which the step's answer is stored. Raises :class:`NotFound`."""
    row = (await session.execute(_BEGIN, {"task_id": task_id, "thread_id": thread_id, "answer": answer})).one_or_none()
    if row is None:
        raise NotFound(f"Task {task_id} has no thread {thread_id}.")
    return StepStart(*row)
