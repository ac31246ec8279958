"""Artifacts and receipts as the API shows them."""

from datetime import datetime

from pydantic import BaseModel

from journeyman.platform.artifacts.models import Artifact, Receipt


class ArtifactView(BaseModel):
    id: str
    task_id: str
    kind: str
    """``patch``, ``bundle``, ``log``, ``report``, ``file`` or ``tool_output``."""
    name: str
    media_type: str
    """As the task named it; the content is always sent as text/plain or application/octet-stream."""
    size: int
    digest: str
    """SHA-256 of the content."""
    created_at: datetime

    @classmethod
    def of(cls, artifact: Artifact) -> "ArtifactView":
        return cls(
            id=artifact.id,
            task_id=artifact.task_id,
            kind=artifact.kind,
            name=artifact.name,
            media_type=artifact.media_type,
            size=artifact.size,
            digest=artifact.digest,
            created_at=artifact.created_at,
        )


class ArtifactList(BaseModel):
    """Oldest first."""

    data: list[ArtifactView]


class ReceiptView(BaseModel):
    """The platform's own run of one acceptance command, in a clean sandbox made from ``snapshot``."""

    id: str
    attempt: int
    position: int
    command: str
    snapshot: str
    exit_code: int | None
    """Null when the command was killed or timed out."""
    passed: bool
    output_artifact_id: str
    duration_s: float
    created_at: datetime

    @classmethod
    def of(cls, receipt: Receipt) -> "ReceiptView":
        return cls(
            id=receipt.id,
            attempt=receipt.attempt,
            position=receipt.position,
            command=receipt.command,
            snapshot=receipt.snapshot,
            exit_code=receipt.exit_code,
            passed=receipt.passed,
            output_artifact_id=receipt.output_artifact_id,
            duration_s=float(receipt.duration_s),
            created_at=receipt.created_at,
        )


class ReceiptList(BaseModel):
    """By attempt, then in the order of the acceptance commands."""

    data: list[ReceiptView]
