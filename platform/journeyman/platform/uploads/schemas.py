"""Uploads as the API shows them."""

from datetime import datetime

from pydantic import BaseModel

from journeyman.platform.uploads.models import Upload


class UploadView(BaseModel):
    """An archive that was checked and taken in; name its id as ``workspace.upload_id``."""

    id: str
    name: str
    size: int
    digest: str
    """SHA-256 of the archive."""
    snapshot: str
    files: int
    created_at: datetime

    @classmethod
    def of(cls, upload: Upload) -> "UploadView":
        return cls(
            id=upload.id,
            name=upload.name,
            size=upload.size,
            digest=upload.digest,
            snapshot=upload.snapshot,
            files=upload.files,
            created_at=upload.created_at,
        )
