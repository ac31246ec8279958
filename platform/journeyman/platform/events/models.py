"""The event log: everything that happened to a task, gapless from 1."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class Event(Base):
    __tablename__ = "events"

    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    project_id: Mapped[str]
    type: Mapped[str]
    time: Mapped[datetime]
    thread_id: Mapped[str | None]
    subtask_id: Mapped[str | None]
    data: Mapped[Json]
    step_key: Mapped[str | None] = mapped_column(unique=True)
    """Set where an activity may write the event twice."""
