"""``/uploads``: workspace archives."""

from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.datastructures import UploadFile

from journeyman.platform.http.dependencies import resource
from journeyman.platform.http.fields import refuse
from journeyman.platform.tenancy.dependencies import PrincipalDep
from journeyman.platform.uploads.schemas import UploadView
from journeyman.platform.uploads.service import UploadService

router = APIRouter(tags=["uploads"])

UploadsDep = Annotated[UploadService, Depends(resource(UploadService))]

_CHUNK: Final = 1024 * 1024


@router.post(
    "/uploads",
    status_code=201,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file"],
                        "properties": {"file": {"type": "string", "format": "binary"}},
                    }
                },
            },
        }
    },
)
async def upload_archive(
    request: Request,
    principal: PrincipalDep,
    uploads: UploadsDep,
    name: Annotated[str | None, Query(max_length=500, description="What to call it; default: the file's name.")] = None,
) -> UploadView:
    """Upload a tar, tar.gz or zip as the start of a workspace: the body itself, or the field `file` of a form.

    Archives with absolute paths, `..`, links that lead out, devices, or more than they seem to hold are refused with
    the name of the member at fault.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return UploadView.of(await uploads.receive(principal.project_id, name or "archive", request.stream()))
    async with request.form(max_files=1, max_fields=8) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise refuse("file", "the form must have a file in the field `file`.")
        return UploadView.of(
            await uploads.receive(principal.project_id, name or file.filename or "archive", _chunks(file))
        )


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(_CHUNK):
        yield chunk
