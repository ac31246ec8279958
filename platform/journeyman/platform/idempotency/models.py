"""The keys under which commands were sent."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base


class IdempotencyKey(Base):
    """A command repeated under its key finds what the first one made; the digest tells a changed one apart."""

    __tablename__ = "idempotency_keys"

    project_id: Mapped[str] = mapped_column(sa.ForeignKey("projects.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_digest: Mapped[str]
    subject_id: Mapped[str]
    """Id of what the command made or changed."""
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
