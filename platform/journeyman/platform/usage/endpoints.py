"""``/tasks/{id}/usage`` and ``/usage``."""

from typing import Annotated

from fastapi import APIRouter, Depends

from journeyman.platform.budgets import service as budgets
from journeyman.platform.budgets.schemas import BudgetView
from journeyman.platform.http.dependencies import DatabaseDep, resource
from journeyman.platform.ledger.service import LedgerService
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tenancy.dependencies import PrincipalDep
from journeyman.platform.usage.schemas import UsageView

router = APIRouter(tags=["usage"])

LedgerDep = Annotated[LedgerService, Depends(resource(LedgerService))]


@router.get("/tasks/{task_id}/usage")
async def read_task_usage(task_id: str, principal: PrincipalDep, database: DatabaseDep, ledger: LedgerDep) -> UsageView:
    """What the task has used, and how that compares with its limits and the project's."""
    async with database.transaction() as session:
        task = await tasks.read(session, principal.project_id, task_id)
        standings = await budgets.standings(session, principal.project_id, task_id)
    totals = await ledger.usage_of_task(task_id)
    return UsageView.of(totals, [BudgetView.of(each) for each in standings], task.inherited)


@router.get("/usage")
async def read_usage(principal: PrincipalDep, database: DatabaseDep, ledger: LedgerDep) -> UsageView:
    """What the project has used, ever; ``budgets`` says what of it falls into the present period."""
    async with database.transaction() as session:
        standings = await budgets.standings(session, principal.project_id)
    totals = await ledger.usage_of_project(principal.project_id)
    return UsageView.of(totals, [BudgetView.of(each) for each in standings])
