"""``/tasks/{id}/artifacts``, ``/tasks/{id}/receipts`` and ``/artifacts/{id}/content``."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response

from journeyman.platform.artifacts import service
from journeyman.platform.artifacts.schemas import ArtifactList, ArtifactView, ReceiptList, ReceiptView
from journeyman.platform.http.content import CONTENT_RESPONSES, Blob, content_response
from journeyman.platform.http.dependencies import DatabaseDep, SessionDep, resource
from journeyman.platform.kit.object_store import ObjectStore, blob_key
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(tags=["artifacts"])

ObjectStoreDep = Annotated[ObjectStore, Depends(resource(ObjectStore))]

Kind = Literal["patch", "bundle", "log", "report", "file", "tool_output"]


@router.get("/tasks/{task_id}/artifacts")
async def list_artifacts(
    task_id: str,
    principal: PrincipalDep,
    session: SessionDep,
    kind: Annotated[Kind | None, Query(description="Default: all but `tool_output`.")] = None,
) -> ArtifactList:
    """What the task hands over."""
    found = await service.artifacts(session, principal.project_id, task_id, kind=kind)
    return ArtifactList(data=[ArtifactView.of(artifact) for artifact in found])


@router.get("/artifacts/{artifact_id}/content", response_class=Response, responses=CONTENT_RESPONSES)
async def read_artifact(
    artifact_id: str,
    principal: PrincipalDep,
    database: DatabaseDep,
    object_store: ObjectStoreDep,
    range_: Annotated[str | None, Header(alias="Range")] = None,
) -> Response:
    """The artifact's bytes, or a range of them."""
    async with database.transaction() as session:
        artifact = await service.artifact(session, principal.project_id, artifact_id)
    key = blob_key(principal.project_id, artifact.digest)
    return await content_response(
        Blob(
            name=artifact.name, size=artifact.size, digest=artifact.digest, text=artifact.media_type.startswith("text/")
        ),
        lambda start, length: object_store.get(key, start=start, length=length),
        range_,
    )


@router.get("/tasks/{task_id}/receipts")
async def list_receipts(task_id: str, principal: PrincipalDep, session: SessionDep) -> ReceiptList:
    """The platform's own runs of the acceptance commands."""
    found = await service.receipts(session, principal.project_id, task_id)
    return ReceiptList(data=[ReceiptView.of(receipt) for receipt in found])
