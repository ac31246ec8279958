"""Leases on sandboxes."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base


class SandboxLease(Base):
    __tablename__ = "sandbox_leases"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"), index=True)
    purpose: Mapped[str]
    """The thread whose commands run there, or ``prepare``, ``verify:<attempt>``."""
    generation: Mapped[int] = mapped_column(sa.Integer)
    """1 for the first sandbox of a purpose, one more for each that replaced a lost one."""
    state: Mapped[str]
    """``leased``, ``released`` or ``lost``."""
    snapshot: Mapped[str | None]
    node: Mapped[str | None]
    """The machine that it is on, where only that machine can reach it."""
    leased_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]

    __table_args__ = (
        sa.UniqueConstraint("task_id", "purpose", "generation"),
        sa.Index(
            "uq_sandbox_leases_live", "task_id", "purpose", unique=True, postgresql_where=sa.text("state = 'leased'")
        ),
    )


class SandboxNode(Base):
    """A machine with sandboxes that only its own workers can reach."""

    __tablename__ = "sandbox_nodes"

    id: Mapped[str] = mapped_column(primary_key=True)
    seen_at: Mapped[datetime]
    """When one of its workers last said that it is alive, by the database's clock."""
    memory_bytes: Mapped[int | None]
    """What its sandboxes together may be promised."""


class SandboxPromise(Base):
    """Memory that a sandbox on a machine was promised: from before it is made until its lease ends."""

    __tablename__ = "sandbox_promises"

    sandbox_id: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(index=True)
    bytes: Mapped[int]
    made_at: Mapped[datetime] = mapped_column(server_default=sa.func.clock_timestamp())
