"""``/models``."""

from fastapi import APIRouter

from journeyman.platform.http.dependencies import SettingsDep
from journeyman.platform.inference.schemas import ModelList, ModelView
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(tags=["usage"])


@router.get("/models")
async def list_models(_: PrincipalDep, settings: SettingsDep) -> ModelList:
    """Which model answers for each tier."""
    tiers = {"standard": settings.model_standard, "fast": settings.model_fast}
    return ModelList(data=[ModelView(tier=tier, model=model, engine=settings.engine) for tier, model in tiers.items()])
