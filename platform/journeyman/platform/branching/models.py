"""Rewinds."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class Rewind(Base):
    """A request to go back. ``applied_at`` is set in the transaction that makes the task's new epoch."""

    __tablename__ = "rewinds"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"), index=True)
    checkpoint_id: Mapped[str] = mapped_column(sa.ForeignKey("checkpoints.id"))
    message: Mapped[str | None]
    """Told to the agents that go on from there, as a message from a person."""
    author: Mapped[str]
    """Id of the API key."""
    epoch: Mapped[int | None] = mapped_column(sa.Integer)
    """The epoch that it made."""
    progress: Mapped[Json | None]
    """What the task goes on from, as ``TaskProgress``: a repeated activity finds what the first one answered."""
    requested_at: Mapped[datetime]
    applied_at: Mapped[datetime | None]
