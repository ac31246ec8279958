"""Notes on a task's blackboard."""

from datetime import datetime
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base

Kind = Literal["decision", "finding", "promise", "note"]


class Note(Base):
    """What one role tells the others. Never changed: a later note may close it."""

    __tablename__ = "notes"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"))
    seq: Mapped[int]
    """From 1 in each task; what agents call its number."""
    kind: Mapped[str]
    """``decision``, ``finding``, ``promise`` or ``note``."""
    text: Mapped[str]
    closes: Mapped[int | None]
    """``seq`` of the promise that is kept, or given up, with this note."""
    role: Mapped[str]
    thread_id: Mapped[str | None]
    subtask_id: Mapped[str | None]
    event_seq: Mapped[int]
    """Of the event that tells of it."""
    epoch: Mapped[int] = mapped_column(sa.Integer)
    """The task's epoch in which it was written."""
    step_key: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    set_aside_at: Mapped[datetime | None]
    """When a rewind went back to before it; one that goes forward again puts it back on the board."""

    __table_args__ = (sa.UniqueConstraint("task_id", "seq"),)
