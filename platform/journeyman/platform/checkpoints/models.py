"""Checkpoints and the snapshots they point to."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class Checkpoint(Base):
    """A point in the event log with all that is needed to go on from there."""

    __tablename__ = "checkpoints"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"))
    event_seq: Mapped[int]
    thread_id: Mapped[str | None]
    thread_cursors: Mapped[Json]
    """Last message ``seq`` by thread id, of the threads that were not superseded."""
    thread_state: Mapped[Json]
    """Of the checkpoint's own thread: ``{segment, segment_start, inbox_seq, acted_seq, base_snapshot}``."""
    plan_revision: Mapped[int] = mapped_column(sa.Integer)
    snapshot: Mapped[str]
    head_snapshot: Mapped[str | None]
    """The task's head at this point: the workspace with all approved work in it."""
    epoch: Mapped[int] = mapped_column(sa.Integer)
    submitted: Mapped[bool]
    """Whether its thread's role handed over in this step."""
    budget: Mapped[Json]
    """Spent up to this point: ``{tokens, cost_usd, steps, wall_s}``."""
    step_key: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())

    __table_args__ = (sa.UniqueConstraint("task_id", "event_seq"),)


class SnapshotRow(Base):
    """A snapshot's digest with its size; the manifest itself is in object storage."""

    __tablename__ = "snapshots"

    project_id: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    files: Mapped[int]
    bytes: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
