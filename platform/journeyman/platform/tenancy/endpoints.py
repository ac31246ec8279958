"""``/me``, ``/projects`` and ``/api-keys``."""

from importlib.metadata import version

from fastapi import APIRouter

from journeyman.platform.http.dependencies import SessionDep, SettingsDep
from journeyman.platform.tenancy import service
from journeyman.platform.tenancy.dependencies import AdminDep, OperatorDep, PrincipalDep
from journeyman.platform.tenancy.schemas import (
    ApiKeyList,
    ApiKeyView,
    CreateApiKey,
    CreatedApiKey,
    CreatedProject,
    CreateProject,
    Me,
    ProjectList,
    ProjectView,
)

router = APIRouter(tags=["tenancy"])


@router.get("/me")
async def me(principal: PrincipalDep, settings: SettingsDep) -> Me:
    """Whose key this is, and which engine answers for the agents."""
    return Me.of(principal, engine=settings.engine, version=version("journeyman"))


@router.get("/projects")
async def list_projects(operator: OperatorDep, session: SessionDep) -> ProjectList:
    """The projects of the organization. Needs an operator key."""
    found = await service.projects(session, operator.organization_id)
    return ProjectList(data=[ProjectView.of(project) for project in found])


@router.post("/projects", status_code=201)
async def create_project(body: CreateProject, operator: OperatorDep, session: SessionDep) -> CreatedProject:
    """A new project in the organization, with its first admin key. Needs an operator key."""
    project, key = await service.create_project(session, operator.organization_id, body.name)
    return CreatedProject(**ProjectView.of(project).model_dump(), api_key=CreatedApiKey.made(key))


@router.get("/api-keys")
async def list_api_keys(admin: AdminDep, session: SessionDep) -> ApiKeyList:
    """The project's keys, newest first, without their secrets."""
    return ApiKeyList(data=[ApiKeyView.of(key) for key in await service.keys(session, admin)])


@router.post("/api-keys", status_code=201)
async def create_api_key(body: CreateApiKey, admin: AdminDep, session: SessionDep) -> CreatedApiKey:
    """A new key of the project. Its secret is in this answer and nowhere else."""
    return CreatedApiKey.made(await service.create_key_for(session, admin, body.name, body.role))


@router.delete("/api-keys/{key_id}")
async def revoke_api_key(key_id: str, admin: AdminDep, session: SessionDep) -> ApiKeyView:
    """Revoke a key, at once and for good. Revoking it again changes nothing."""
    return ApiKeyView.of(await service.revoke_key(session, admin, key_id))
