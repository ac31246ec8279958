"""``/tasks/{id}/usage``, ``/usage`` and ``/models``."""

from fastapi import APIRouter

from journeyman.platform.api.dependencies import PrincipalDep, ResourcesDep
from journeyman.platform.inference.schemas import ModelList, ModelView, UsageView
from journeyman.platform.tasks import service as tasks

router = APIRouter(tags=["usage"])


@router.get("/tasks/{task_id}/usage")
async def read_task_usage(task_id: str, principal: PrincipalDep, resources: ResourcesDep) -> UsageView:
    """What the task has used."""
    async with resources.database.transaction() as session:
        await tasks.read(session, principal.project_id, task_id)
    return UsageView.of(await resources.ledger.usage_of_task(task_id))


@router.get("/usage")
async def read_usage(principal: PrincipalDep, resources: ResourcesDep) -> UsageView:
    """What the project has used."""
    return UsageView.of(await resources.ledger.usage_of_project(principal.project_id))


@router.get("/models")
async def list_models(_: PrincipalDep, resources: ResourcesDep) -> ModelList:
    """Which model answers for each tier."""
    settings = resources.settings
    tiers = {"standard": settings.model_standard, "fast": settings.model_fast}
    return ModelList(data=[ModelView(tier=tier, model=model, engine=resources.engine) for tier, model in tiers.items()])
