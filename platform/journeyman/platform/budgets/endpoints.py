"""``/projects/{id}/budget``."""

from fastapi import APIRouter

from journeyman.platform.budgets import service
from journeyman.platform.budgets.dependencies import BudgetWarningsDep
from journeyman.platform.budgets.schemas import BudgetView, ChangedBudget, ProjectBudget
from journeyman.platform.http.dependencies import SessionDep
from journeyman.platform.tenancy.dependencies import AdminDep
from journeyman.platform.tenancy.service import administered_project

router = APIRouter(prefix="/projects/{project_id}/budget", tags=["usage"])


@router.get("")
async def read_project_budget(project_id: str, admin: AdminDep, session: SessionDep) -> BudgetView:
    """A project's limits over all of its tasks, and what is spent of them. An operator key reaches every project."""
    await administered_project(session, admin, project_id)
    return BudgetView.of(await service.standing_of(session, project_id))


@router.patch("")
async def change_project_budget(
    project_id: str, changes: ProjectBudget, admin: AdminDep, session: SessionDep, budget_warnings: BudgetWarningsDep
) -> ChangedBudget:
    """Raise, lower or (with null) take away limits. Tasks that wait for a limit which was raised go on, once each."""
    await administered_project(session, admin, project_id)
    changed = await service.change(session, project_id, changes)
    return ChangedBudget(
        **BudgetView.of(changed.standing).model_dump(),
        resumed=changed.resumed,
        warnings=budget_warnings.of_budget(changed.standing.budget),
    )
