"""Messages from people, numbered in each task."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base


class PersonMessage(Base):
    """What a person says to the agents of a task. Every thread that is open, and every later one, is told once."""

    __tablename__ = "person_messages"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"))
    seq: Mapped[int]
    """From 1 in each task."""
    text: Mapped[str]
    mode: Mapped[str]
    """``queue`` or ``interrupt``."""
    state: Mapped[str]
    """``received``, ``delivered`` (in a thread) or ``acted_on`` (a model has answered after reading it)."""
    author: Mapped[str]
    """Id of the API key."""
    created_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None]
    acted_on_at: Mapped[datetime | None]
    set_aside_at: Mapped[datetime | None]
    """When the task was rewound to before it: no agent is told any more."""

    __table_args__ = (sa.UniqueConstraint("task_id", "seq"),)
