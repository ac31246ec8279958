"""Notes on a task's blackboard."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base


class Note(Base):
    __tablename__ = "notes"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"))
    seq: Mapped[int]
    """From 1 in each task."""
    kind: Mapped[str]
    """``decision``, ``finding``, ``promise`` or ``note``."""
    text: Mapped[str]
    role: Mapped[str]
    thread_id: Mapped[str | None]
    subtask_id: Mapped[str | None]
    step_key: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    set_aside_at: Mapped[datetime | None]
    """When the task was rewound to before it: no agent reads it any more."""

    __table_args__ = (sa.UniqueConstraint("task_id", "seq"),)
