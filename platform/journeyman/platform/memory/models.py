"""Long-term memory: the rows are the truth, the vectors in Qdrant an index over them."""

from datetime import datetime
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base

Kind = Literal["fact", "command", "lesson"]
Origin = Literal["agent", "platform", "person"]


class Memory(Base):
    """One thing that a project knows. It counts while it is neither deleted nor superseded."""

    __tablename__ = "memories"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("projects.id"))
    task_id: Mapped[str | None]
    source_event_id: Mapped[str | None]
    kind: Mapped[str]
    """``fact``, ``command`` or ``lesson``."""
    text: Mapped[str]
    step_key: Mapped[str] = mapped_column(unique=True)
    revision: Mapped[int] = mapped_column(sa.Integer)
    """From 1, incremented by whatever concerns the index: another text, deletion, supersession. Each has a vector of its own."""
    index_due_at: Mapped[datetime | None]
    """From when on the index is to be brought up to date; nothing when it is. Who does that moves it into the future first."""
    indexed_at: Mapped[datetime | None]
    """Nothing until Qdrant has the vector of its text, and again once that is taken out."""
    origin: Mapped[str]
    """Who wrote it: ``agent``, ``platform`` or ``person``."""
    digest: Mapped[str]
    """SHA-256 of the normalised text: the same memory again is confirmed, not doubled."""
    confirmations: Mapped[int] = mapped_column(sa.Integer)
    """How often it was written again, beside the first time."""
    uses: Mapped[int]
    """How often it was recalled."""
    last_used_at: Mapped[datetime | None]
    superseded_by: Mapped[str | None]
    """The memory that says it better or says otherwise; nothing for one that counts."""
    edited_at: Mapped[datetime | None]
    """When a person last corrected it or vouched for it."""
    deleted_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    """When it was last written, confirmed or edited."""
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())

    __table_args__ = (
        sa.Index("ix_memories_project_created", "project_id", "created_at", "id"),
        sa.Index(
            "uq_memories_live_digest",
            "project_id",
            "digest",
            unique=True,
            postgresql_where=sa.text("deleted_at IS NULL AND superseded_by IS NULL"),
        ),
        sa.Index("ix_memories_index_due", "index_due_at", postgresql_where=sa.text("index_due_at IS NOT NULL")),
        sa.Index("ix_memories_task", "task_id"),
        sa.Index(
            "ix_memories_words",
            sa.text("to_tsvector('english', text)"),
            postgresql_using="gin",
            postgresql_where=sa.text("deleted_at IS NULL AND superseded_by IS NULL"),
        ),
    )

    @property
    def of_person(self) -> bool:
        """Whether a person stands behind the text."""
        return self.origin == "person" or self.edited_at is not None

    @property
    def live(self) -> bool:
        """Whether it counts: only then it is ever recalled."""
        return self.deleted_at is None and self.superseded_by is None


class MemoryChange(Base):
    """What happened to a memory after it was first written, and through whom: kept for good."""

    __tablename__ = "memory_changes"

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(), primary_key=True)
    project_id: Mapped[str]
    memory_id: Mapped[str] = mapped_column(sa.ForeignKey("memories.id"), index=True)
    action: Mapped[str]
    """``added``, ``confirmed``, ``edited``, ``superseded``, ``restored`` or ``deleted``."""
    api_key_id: Mapped[str | None]
    """The key of the person; nothing for what agents and the platform did."""
    event_id: Mapped[str | None]
    """The event of the task that did it."""
    kind: Mapped[str]
    """As it was before."""
    text: Mapped[str]
    """As it was before; for ``added`` as it was written."""
    other_id: Mapped[str | None]
    """The memory that superseded it, or whose deletion restored it."""
    created_at: Mapped[datetime]
