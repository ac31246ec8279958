"""Long-term memory: the rows are the truth, the vectors in Qdrant an index over them."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base


class Memory(Base):
    __tablename__ = "memories"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("projects.id"), index=True)
    task_id: Mapped[str | None]
    source_event_id: Mapped[str | None]
    kind: Mapped[str]
    """``fact``, ``command`` or ``lesson``."""
    text: Mapped[str]
    step_key: Mapped[str] = mapped_column(unique=True)
    indexed_at: Mapped[datetime | None]
    """Nothing until Qdrant has the vector."""
    origin: Mapped[str]
    """Who wrote it: ``agent``, ``platform`` or ``person``."""
    digest: Mapped[str]
    """SHA-256 of the normalised text: the same memory again is confirmed, not doubled."""
    confirmations: Mapped[int] = mapped_column(sa.Integer)
    """How often it was written again, beside the first time."""
    uses: Mapped[int]
    """How often it was recalled."""
    last_used_at: Mapped[datetime | None]
    superseded_by: Mapped[str | None]
    """The memory that says it better or says otherwise; nothing for one that counts."""
    deleted_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
