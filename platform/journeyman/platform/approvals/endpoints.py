"""``/approvals``: the inbox; and what is decided of a plan under its task's address."""

from typing import Annotated

from fastapi import APIRouter, Query

from journeyman.platform.approvals import plans as waiting_plan
from journeyman.platform.approvals import service
from journeyman.platform.approvals.schemas import (
    ApprovalFilter,
    ApprovalPage,
    ApprovalView,
    Decide,
    DecidePlan,
    RejectPlan,
)
from journeyman.platform.approvals.service import Verdict
from journeyman.platform.http.dependencies import IdempotencyKeyDep, SessionDep
from journeyman.platform.plans import service as plans
from journeyman.platform.plans.schemas import PlanInput, PlanView
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(prefix="/approvals", tags=["approvals"])
plan_router = APIRouter(prefix="/tasks", tags=["plans"])


@router.get("")
async def list_approvals(
    wanted: Annotated[ApprovalFilter, Query()], principal: PrincipalDep, session: SessionDep
) -> ApprovalPage:
    """What waits for a person, or waited, newest first."""
    approvals, cursor = await service.page(session, principal.project_id, wanted)
    return ApprovalPage(data=[ApprovalView.of(approval) for approval in approvals], next_cursor=cursor)


@router.get("/{approval_id}")
async def read_approval(approval_id: str, principal: PrincipalDep, session: SessionDep) -> ApprovalView:
    """One approval."""
    return ApprovalView.of(await service.read(session, principal.project_id, approval_id))


@router.post("/{approval_id}")
async def decide_approval(
    approval_id: str,
    body: Decide,
    principal: PrincipalDep,
    session: SessionDep,
    idempotency_key: IdempotencyKeyDep = None,
) -> ApprovalView:
    """Approve or reject. The same decision again answers alike; another one, or one too late, is a 409 that says why."""
    decided = await service.decide(
        session, principal.project_id, approval_id, body, by=principal.key_id, idempotency_key=idempotency_key
    )
    return ApprovalView.of(decided)


@plan_router.put("/{task_id}/plan")
async def edit_plan(task_id: str, wanted: PlanInput, principal: PrincipalDep, session: SessionDep) -> PlanView:
    """Put another plan in the place of the one that waits for approval: a new revision, which then waits for it."""
    revision = await waiting_plan.edit(session, principal.project_id, task_id, wanted, by=principal.key_id)
    found = await plans.read(session, principal.project_id, task_id, revision)
    return PlanView.of(found)


@plan_router.post("/{task_id}/plan/approve")
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
    approval = await waiting_plan.decide(
        session, principal.project_id, task_id, verdict, revision=given.revision, idempotency_key=idempotency_key
    )
    return ApprovalView.of(approval)


@plan_router.post("/{task_id}/plan/reject")
async def reject_plan(
    task_id: str,
    body: RejectPlan,
    principal: PrincipalDep,
    session: SessionDep,
    idempotency_key: IdempotencyKeyDep = None,
) -> ApprovalView:
    """Reject the plan that waits; the Planner plans again, with the note as the reason. Repeating it changes nothing."""
    verdict = Verdict("reject", principal.key_id, body.note)
    approval = await waiting_plan.decide(
        session, principal.project_id, task_id, verdict, revision=body.revision, idempotency_key=idempotency_key
    )
    return ApprovalView.of(approval)
