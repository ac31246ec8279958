"""Putting things into the outbox: inside the transaction whose effect they are."""

from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.outbox import repository
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.tasks.contract import StartTask

CHANNEL: Final = "journeyman_outbox"
"""PostgreSQL notification channel: there is something to deliver."""

Kind = Literal["start_task", "cancel_task", "signal_task"]


async def enqueue_start(session: AsyncSession, start: StartTask) -> None:
    """Have the task's workflow started once this transaction is committed."""
    await _enqueue(session, start.project_id, start.task_id, "start_task", start.model_dump(mode="json"))


async def enqueue_cancel(session: AsyncSession, project_id: str, task_id: str) -> None:
    """Have the task's workflow told to stop, after whatever was enqueued for the task before."""
    await _enqueue(session, project_id, task_id, "cancel_task", {})


async def enqueue_signal(session: AsyncSession, project_id: str, task_id: str, signal: str, *arguments: str) -> None:
    """Have the task's workflow told something: one of the signals in :mod:`journeyman.platform.kit.names`."""
    await _enqueue(session, project_id, task_id, "signal_task", {"signal": signal, "arguments": list(arguments)})


async def withdraw_start(session: AsyncSession, task_id: str) -> bool:
    """Take the start back. False when it was attempted already, so that a workflow may exist."""
    return await repository.settle_untried(
        session, task_id, "start_task", "withdrawn: the task was cancelled before it was started"
    )


async def _enqueue(session: AsyncSession, project_id: str, task_id: str, kind: Kind, payload: Json) -> None:
    moment = now()
    entry = OutboxEntry(
        project_id=project_id,
        task_id=task_id,
        kind=kind,
        payload=payload,
        attempts=0,
        next_attempt_at=moment,
        last_error=None,
        created_at=moment,
        delivered_at=None,
    )
    await repository.add(session, entry)
    await repository.notify(session, CHANNEL, task_id)
