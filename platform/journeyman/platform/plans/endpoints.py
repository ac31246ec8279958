"""``/tasks/{id}/plan``."""

from typing import Annotated

from fastapi import APIRouter, Query

from journeyman.platform.api.dependencies import IdempotencyKeyDep, PrincipalDep, SessionDep
from journeyman.platform.approvals import plans as approvals
from journeyman.platform.approvals.schemas import ApprovalView, DecidePlan, RejectPlan
from journeyman.platform.approvals.service import Verdict
from journeyman.platform.plans import service
from journeyman.platform.plans.schemas import PlanInput, PlanView

router = APIRouter(prefix="/tasks", tags=["plans"])


@router.get("/{task_id}/plan")
async def read_plan(
    task_id: str,
    principal: PrincipalDep,
    session: SessionDep,
    revision: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Default: the one in force.")] = None,
) -> PlanView:
    """The plan with the state of each subtask. 404 with code `no_plan_yet` until the Planner has submitted one."""
    found = await service.read(session, principal.project_id, task_id, revision)
    return PlanView.of(found)


@router.put("/{task_id}/plan")
async def edit_plan(task_id: str, wanted: PlanInput, principal: PrincipalDep, session: SessionDep) -> PlanView:
    """Put another plan in the place of the one that waits for approval: a new revision, which then waits for it."""
    revision = await approvals.edit(session, principal.project_id, task_id, wanted, by=principal.key_id)
    found = await service.read(session, principal.project_id, task_id, revision)
    return PlanView.of(found)


@router.post("/{task_id}/plan/approve")
async def approve_plan(
    task_id: str,
    principal: PrincipalDep,
    session: SessionDep,
    body: DecidePlan | None = None,
    idempotency_key: IdempotencyKeyDep = None,
) -> ApprovalView:
    """Approve the plan that waits; the work begins. Repeating it changes nothing."""
    given = body or DecidePlan()
    verdict = Verdict("approve", principal.key_id, given.note)
    approval = await approvals.decide(
        session, principal.project_id, task_id, verdict, revision=given.revision, idempotency_key=idempotency_key
    )
    return ApprovalView.of(approval)


@router.post("/{task_id}/plan/reject")
async def reject_plan(
    task_id: str,
    body: RejectPlan,
    principal: PrincipalDep,
    session: SessionDep,
    idempotency_key: IdempotencyKeyDep = None,
) -> ApprovalView:
    """Reject the plan that waits; the Planner plans again, with the note as the reason. Repeating it changes nothing."""
    verdict = Verdict("reject", principal.key_id, body.note)
    approval = await approvals.decide(
        session, principal.project_id, task_id, verdict, revision=body.revision, idempotency_key=idempotency_key
    )
    return ApprovalView.of(approval)
