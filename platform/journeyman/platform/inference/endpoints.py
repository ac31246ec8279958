"""``/tasks/{id}/usage``, ``/usage`` and ``/models``."""

from fastapi import APIRouter

from journeyman.platform.api.dependencies import PrincipalDep, ResourcesDep
from journeyman.platform.budgets import service as budgets
from journeyman.platform.budgets.schemas import BudgetView
from journeyman.platform.inference.schemas import ModelList, ModelView, UsageView
from journeyman.platform.tasks import service as tasks

router = APIRouter(tags=["usage"])


@router.get("/tasks/{task_id}/usage")
async def read_task_usage(task_id: str, principal: PrincipalDep, resources: ResourcesDep) -> UsageView:
    """What the task has used, and how that compares with its limits and the project's."""
    async with resources.database.transaction() as session:
        task = await tasks.read(session, principal.project_id, task_id)
        standings = await budgets.standings(session, principal.project_id, task_id)
    totals = await resources.ledger.usage_of_task(task_id)
    return UsageView.of(totals, [BudgetView.of(each) for each in standings], task.inherited)


@router.get("/usage")
async def read_usage(principal: PrincipalDep, resources: ResourcesDep) -> UsageView:
    """What the project has used, ever; ``budgets`` says what of it falls into the present period."""
    async with resources.database.transaction() as session:
        standings = await budgets.standings(session, principal.project_id)
    totals = await resources.ledger.usage_of_project(principal.project_id)
    return UsageView.of(totals, [BudgetView.of(each) for each in standings])


@router.get("/models")
async def list_models(_: PrincipalDep, resources: ResourcesDep) -> ModelList:
    """Which model answers for each tier."""
    settings = resources.settings
    tiers = {"standard": settings.model_standard, "fast": settings.model_fast}
    return ModelList(data=[ModelView(tier=tier, model=model, engine=resources.engine) for tier, model in tiers.items()])
