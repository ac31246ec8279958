"""The plan that waits for a person: changed, approved or rejected under the address of its task."""

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals import plan_edits as editing
from journeyman.platform.approvals import repository, service
from journeyman.platform.approvals.models import Approval
from journeyman.platform.approvals.service import Verdict
from journeyman.platform.idempotency import service as idempotency
from journeyman.platform.kit.errors import Conflict
from journeyman.platform.plans.schemas import PlanInput
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task


async def edit(session: AsyncSession, project_id: str, task_id: str, wanted: PlanInput, *, by: str) -> int:
    """Put another plan in the place of the one that waits; returns its revision. The same plan again changes nothing.

    Raises :class:`Conflict` with code ``plan_not_waiting`` when none waits, :class:`InvalidInput` for a plan that cannot be
    carried out.
    """
    task, approval = await _newest(session, project_id, task_id)
    verdict = Verdict("approve", by)
    if approval is None or approval.state != "pending" or not service.still_open(task, approval, verdict):
        raise _not_waiting(task, "edited")
    return (await editing.store(session, task, approval, wanted, by=by)).revision


async def decide(
    session: AsyncSession,
    project_id: str,
    task_id: str,
    verdict: Verdict,
    *,
    revision: int | None,
    idempotency_key: str | None,
) -> Approval:
    """Approve or reject the plan that waits; the same decision again changes nothing and answers alike.

    Raises :class:`Conflict`: ``plan_changed`` when ``revision`` is not the one that waits, ``plan_not_waiting`` when none
    waits or ever did, and those of :func:`service.decide`.
    """
    task, approval = await _newest(session, project_id, task_id)
    if approval is None:
        raise _not_waiting(task, "approved" if verdict.decision == "approve" else "rejected")
    request = {"note": verdict.note, "revision": revision}
    command = f"{verdict.decision} plan {task_id}"
    earlier = await idempotency.claim(session, project_id, idempotency_key, command, request, approval.id)
    if earlier is not None:
        return await service.read(session, project_id, earlier)
    current = approval.subject["revision"]
    if revision not in {None, current}:
        raise Conflict(
            f"The plan was changed: revision {current} is the newest, not {revision}. Look at it, then decide again.",
            code="plan_changed",
            revision=current,
        )
    return await service.settle_verdict(session, task, approval, verdict)


async def _newest(session: AsyncSession, project_id: str, task_id: str) -> tuple[Task, Approval | None]:
    await tasks.read(session, project_id, task_id)
    task = await lock_task(session, task_id)
    return task, await repository.latest_of_plan(session, task_id)


def _not_waiting(task: Task, what: str) -> Conflict:
    return Conflict(
        f"No plan of this task waits for approval (the task is {task.state}), so that none can be {what}. "
        "A plan waits only if the task's approval_policy says plan: always.",
        code="plan_not_waiting",
        state=task.state,
    )
