"""``/tasks/{id}/checkpoints``, ``…/files``, ``…/files/content`` and ``…/diff``."""

from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from fastapi.responses import PlainTextResponse, Response

from journeyman.platform.checkpoints import service
from journeyman.platform.checkpoints.dependencies import SnapshotsDep
from journeyman.platform.checkpoints.paths import relative
from journeyman.platform.checkpoints.schemas import (
    CheckpointFilter,
    CheckpointPage,
    CheckpointView,
    ContentFilter,
    DiffFilter,
    DiffView,
    FileList,
    FilesFilter,
    FileView,
)
from journeyman.platform.http.content import CONTENT_RESPONSES, Blob, content_response
from journeyman.platform.http.dependencies import DatabaseDep, SessionDep
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(prefix="/tasks", tags=["workspace"])

DIFF_MEDIA_TYPE: Final = "text/x-diff"
MAX_PATCH: Final = 2 * 1024 * 1024
"""Characters of patches in one JSON answer; ``Accept: text/x-diff`` has no limit."""


@router.get("/{task_id}/checkpoints")
async def list_checkpoints(
    task_id: str, query: Annotated[CheckpointFilter, Query()], principal: PrincipalDep, session: SessionDep
) -> CheckpointPage:
    """The task's checkpoints, newest first."""
    found, cursor = await service.page(session, principal.project_id, task_id, query)
    return CheckpointPage(data=[CheckpointView.of(checkpoint) for checkpoint in found], next_cursor=cursor)


@router.get("/{task_id}/files")
async def list_files(
    task_id: str,
    query: Annotated[FilesFilter, Query()],
    principal: PrincipalDep,
    database: DatabaseDep,
    snapshots: SnapshotsDep,
) -> FileList:
    """The workspace's files at a point of the task."""
    async with database.transaction() as session:
        digest = await service.snapshot_at(session, principal.project_id, task_id, query.checkpoint, field="checkpoint")
    entries, truncated = await service.files(snapshots, principal.project_id, digest, query.path)
    return FileList(snapshot=digest, data=[FileView.of(entry) for entry in entries], truncated=truncated)


@router.get("/{task_id}/files/content", response_class=Response, responses=CONTENT_RESPONSES)
async def read_file(
    task_id: str,
    query: Annotated[ContentFilter, Query()],
    principal: PrincipalDep,
    database: DatabaseDep,
    snapshots: SnapshotsDep,
    range_: Annotated[str | None, Header(alias="Range")] = None,
) -> Response:
    """A file's bytes at a point of the task, or a range of them."""
    project_id = principal.project_id
    async with database.transaction() as session:
        digest = await service.snapshot_at(session, project_id, task_id, query.checkpoint, field="checkpoint")
    entry = await service.content(snapshots, project_id, digest, query.path)
    return await content_response(
        Blob(name=relative(entry.path), size=entry.size, digest=entry.sha256, text=False),
        lambda start, length: snapshots.read(project_id, digest, entry.path, start, length),
        range_,
    )


@router.get(
    "/{task_id}/diff",
    response_model=DiffView,
    responses={200: {"content": {DIFF_MEDIA_TYPE: {"schema": {"type": "string"}}}}},
)
async def read_diff(
    task_id: str,
    query: Annotated[DiffFilter, Query()],
    principal: PrincipalDep,
    database: DatabaseDep,
    snapshots: SnapshotsDep,
    accept: Annotated[str | None, Header()] = None,
) -> DiffView | Response:
    """What changed in the workspace between two points; with `Accept: text/x-diff` as one patch."""
    project_id = principal.project_id
    async with database.transaction() as session:
        before = await service.snapshot_at(session, project_id, task_id, query.from_, field="from")
        after = await service.snapshot_at(session, project_id, task_id, query.to, field="to")
    found = await service.changes(snapshots, project_id, before, after)
    if accept is not None and DIFF_MEDIA_TYPE in accept:
        whole = "".join(change.patch for change in found).encode("utf-8", "surrogateescape")
        return PlainTextResponse(whole, media_type=DIFF_MEDIA_TYPE)
    return DiffView.of(before, after, found, max_patch=MAX_PATCH)
