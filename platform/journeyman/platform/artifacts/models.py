"""What a task hands over, and the receipts of the platform's own acceptance runs."""

from datetime import datetime
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base


class Artifact(Base):
    __tablename__ = "artifacts"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"))
    kind: Mapped[str]
    """``patch``, ``bundle``, ``file``, ``report``, ``log`` (of an acceptance command) or ``tool_output`` (for ``read_output`` only)."""
    name: Mapped[str]
    media_type: Mapped[str]
    size: Mapped[int]
    digest: Mapped[str]
    """Of its bytes in object storage."""
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())

    __table_args__ = (sa.Index("ix_artifacts_task_kind", "task_id", "kind"),)


class Receipt(Base):
    """One acceptance command, run by the platform in a clean sandbox made from a snapshot."""

    __tablename__ = "receipts"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"))
    attempt: Mapped[int] = mapped_column(sa.Integer)
    position: Mapped[int] = mapped_column(sa.Integer)
    command: Mapped[str]
    snapshot: Mapped[str]
    exit_code: Mapped[int | None] = mapped_column(sa.Integer)
    passed: Mapped[bool]
    output_artifact_id: Mapped[str]
    duration_s: Mapped[Decimal] = mapped_column(sa.Numeric(12, 3))
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())

    __table_args__ = (sa.UniqueConstraint("task_id", "attempt", "position"),)
