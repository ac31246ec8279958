"""Uploaded workspace archives, already turned into snapshots."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base


class Upload(Base):
    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("projects.id"))
    name: Mapped[str]
    size: Mapped[int]
    digest: Mapped[str]
    """SHA-256 of the archive."""
    snapshot: Mapped[str]
    files: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
