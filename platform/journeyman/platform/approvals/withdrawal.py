"""Taking back what nobody has to decide any more. Apart from the service, because a task's lifecycle calls it."""

from typing import Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals.models import Approval
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.metrics import APPROVALS, count_after_commit
from journeyman.platform.tasks.models import Task

Why = Literal["cancelled", "ended", "rewound", "replanned"]


async def withdraw(session: AsyncSession, task: Task, why: Why) -> int:
    """Withdraw all that is pending of a task whose row the caller has locked. Returns how many there were."""
    pending = await session.scalars(
        sa.select(Approval)
        .where(Approval.task_id == task.id, Approval.state == "pending")
        .order_by(Approval.requested_at, Approval.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    count = 0
    for approval in pending:
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
        count += 1
    if task.waiting_for:
        task.waiting_for = []
    return count
