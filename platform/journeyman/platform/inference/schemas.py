"""Models as the API shows them."""

from pydantic import BaseModel


class ModelView(BaseModel):
    """What answers for a tier."""

    tier: str
    model: str
    engine: str
    """``model``, or ``replay`` while scripted answers stand in for one."""


class ModelList(BaseModel):
    data: list[ModelView]
