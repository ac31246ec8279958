"""``/approvals``: the inbox."""

from typing import Annotated

from fastapi import APIRouter, Query

from journeyman.platform.api.dependencies import IdempotencyKeyDep, PrincipalDep, SessionDep
from journeyman.platform.approvals import service
from journeyman.platform.approvals.schemas import ApprovalFilter, ApprovalPage, ApprovalView, Decide

router = APIRouter(prefix="/approvals", tags=["approvals"])


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
