"""Approvals: what waits for a person, until when, and how it was decided."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class Approval(Base):
    """A question to people, asked once by a step, and its answer."""

    __tablename__ = "approvals"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("projects.id"))
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"))
    kind: Mapped[str]
    """``plan`` or ``tool_call``."""
    subject: Mapped[Json]
    """``{revision, proposed?}`` of a plan: the one that waits, and the Planner's own if a person has edited it;
    ``{call_id, tool, arguments, reason, role}`` of a tool call."""
    thread_id: Mapped[str | None]
    subtask_id: Mapped[str | None]
    step_key: Mapped[str] = mapped_column(unique=True)
    """What asks: the same step asks once, however often it is repeated."""
    state: Mapped[str]
    """``pending``, ``approved``, ``rejected``, ``expired`` or ``withdrawn``; then ``note`` says why, see :data:`.withdrawal.Why`."""
    note: Mapped[str | None]
    edited: Mapped[Json | None]
    """What was approved instead of what was asked."""
    decided_by: Mapped[str | None]
    """Id of the API key; nothing for what the platform decided."""
    on_expiry: Mapped[str]
    """``approve`` or ``reject``: what follows when nobody decides in time."""
    requested_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    escalate_at: Mapped[datetime | None]
    escalated_at: Mapped[datetime | None]
    decided_at: Mapped[datetime | None]

    __table_args__ = (
        sa.Index("ix_approvals_inbox", "project_id", "state", "requested_at", "id"),
        sa.Index("ix_approvals_task", "task_id"),
    )
