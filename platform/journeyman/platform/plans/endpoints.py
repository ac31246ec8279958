"""``/tasks/{id}/plan``."""

from typing import Annotated

from fastapi import APIRouter, Query

from journeyman.platform.http.dependencies import SessionDep
from journeyman.platform.plans import service
from journeyman.platform.plans.schemas import PlanView
from journeyman.platform.tenancy.dependencies import PrincipalDep

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
