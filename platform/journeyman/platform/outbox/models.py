"""The outbox: what must leave the platform after a commit, in order per task."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class OutboxEntry(Base):
    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(), primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str]
    kind: Mapped[str]
    """``start_task``, ``cancel_task``, ``pause_task`` or ``resume_task``."""
    payload: Mapped[Json]
    attempts: Mapped[int] = mapped_column(sa.Integer)
    next_attempt_at: Mapped[datetime]
    last_error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    delivered_at: Mapped[datetime | None]

    __table_args__ = (
        sa.Index("ix_outbox_pending", "next_attempt_at", "id", postgresql_where=sa.text("delivered_at IS NULL")),
    )
