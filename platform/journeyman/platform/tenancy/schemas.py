"""Projects, keys and who is asking, as the API shows them."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from journeyman.platform.http.fields import Input, Line
from journeyman.platform.tenancy.models import ApiKey, Project
from journeyman.platform.tenancy.service import NewKey, Principal, Role


class ProjectView(BaseModel):
    """A project."""

    id: str
    organization_id: str
    name: str
    created_at: datetime

    @classmethod
    def of(cls, project: Project) -> "ProjectView":
        return cls(
            id=project.id,
            organization_id=project.organization_id,
            name=project.name,
            created_at=project.created_at,
        )


class ProjectList(BaseModel):
    """Oldest first."""

    data: list[ProjectView]


class ApiKeyView(BaseModel):
    """A key without its secret."""

    id: str
    project_id: str
    name: str
    role: str
    created_at: datetime
    revoked_at: datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> "ApiKeyView":
        return cls(
            id=key.id,
            project_id=key.project_id,
            name=key.name,
            role=key.role,
            created_at=key.created_at,
            revoked_at=key.revoked_at,
        )


class ApiKeyList(BaseModel):
    """Newest first, revoked ones too."""

    data: list[ApiKeyView]


class CreatedApiKey(ApiKeyView):
    """A key with its secret, which is shown this once."""

    key: str

    @classmethod
    def made(cls, new: NewKey) -> "CreatedApiKey":
        return cls(**ApiKeyView.of(new.record).model_dump(), key=new.secret)


class CreatedProject(ProjectView):
    """A project with its first admin key, whose secret is shown this once."""

    api_key: CreatedApiKey


class CreateApiKey(Input):
    """A key for a person or a program."""

    name: Annotated[Line, Field(min_length=1, max_length=100)]
    role: Role = "member"


class CreateProject(Input):
    """A project beside those there are."""

    name: Annotated[Line, Field(min_length=1, max_length=100)]


class MeProject(BaseModel):
    id: str
    organization_id: str
    name: str


class MeKey(BaseModel):
    id: str
    name: str
    role: str


class Me(BaseModel):
    """Who the key belongs to, and what answers for the agents: a model, or the replay engine with its scripts."""

    project: MeProject
    key: MeKey
    engine: Literal["replay", "model"]
    version: str

    @classmethod
    def of(cls, principal: Principal, *, engine: Literal["replay", "model"], version: str) -> "Me":
        return cls(
            project=MeProject(
                id=principal.project_id,
                organization_id=principal.organization_id,
                name=principal.project_name,
            ),
            key=MeKey(id=principal.key_id, name=principal.key_name, role=principal.role),
            engine=engine,
            version=version,
        )
