"""Plans: immutable revisions, and the state of their subtasks."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class Plan(Base):
    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"))
    revision: Mapped[int] = mapped_column(sa.Integer)
    subtasks: Mapped[list[Json]]
    """As submitted: ``{id, title, instructions, depends_on, acceptance}``."""
    acceptance: Mapped[list[str]]
    reason: Mapped[str | None]
    """Why a plan before this one was given up; nothing for the first."""
    author: Mapped[str | None]
    """Id of the API key whose edit this is; nothing for a Planner's own plan."""
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())

    __table_args__ = (sa.UniqueConstraint("task_id", "revision"),)


class Subtask(Base):
    """Progress of one subtask of one revision."""

    __tablename__ = "subtasks"

    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"), primary_key=True)
    revision: Mapped[int] = mapped_column(sa.Integer, primary_key=True)
    subtask_id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    position: Mapped[int] = mapped_column(sa.Integer)
    state: Mapped[str]
    """``pending``, ``running``, ``completed`` or ``failed``; ``superseded`` of a plan that a rewind went back to before."""
    rounds: Mapped[int] = mapped_column(sa.Integer)
    base_snapshot: Mapped[str | None]
    snapshot: Mapped[str | None]
    summary: Mapped[str | None]
