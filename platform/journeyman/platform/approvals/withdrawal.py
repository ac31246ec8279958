"""Taking back what nobody has to decide any more. Apart from the service, because a task's lifecycle calls it."""

from collections.abc import Sequence
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals import repository
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.metrics import APPROVALS, count_after_commit
from journeyman.platform.tasks.models import Task

Why = Literal["cancelled", "ended", "rewound", "interrupted"]


async def withdraw(session: AsyncSession, task: Task, why: Why, *, only: Sequence[str] | None = None) -> int:
    """Withdraw what is pending of a task whose row the caller has locked: all of it, or what ``only`` names.

    Returns how many there were.
    """
    withdrawn = []
    for approval in await repository.lock_pending(session, task.id, only=only):
        approval.state = "withdrawn"
        approval.note = why
        approval.decided_at = now()
        data = {
            "approval_id": approval.id,
            "kind": approval.kind,
            "decision": "withdrawn",
            "reason": why,
            "decided_by": None,
            "note": None,
            "edited": False,
        }
        await append(
            session,
            task.id,
            EventType.APPROVAL_DECIDED,
            data,
            thread_id=approval.thread_id,
            subtask_id=approval.subtask_id,
        )
        count_after_commit(session, APPROVALS, approval.kind, "withdrawn")
        withdrawn.append(approval.id)
    left = [] if only is None else [each for each in task.waiting_for if each not in withdrawn]
    if left != task.waiting_for:
        task.waiting_for = left
    return len(withdrawn)
