"""Threads: one agent's conversation each, as append-only messages, and the record of tool calls begun."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class Thread(Base):
    __tablename__ = "threads"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str] = mapped_column(sa.ForeignKey("tasks.id"), index=True)
    role: Mapped[str]
    subtask_id: Mapped[str | None]
    attempt: Mapped[int] = mapped_column(sa.Integer)
    """Plan revision for a Planner and a Coder, review round for a Reviewer."""
    revision: Mapped[int] = mapped_column(sa.Integer)
    base_snapshot: Mapped[str | None]
    """What its first sandbox was made from."""
    snapshot: Mapped[str | None]
    """The newest state of its workspace: what a lost sandbox is restored from."""
    sandbox_id: Mapped[str | None]
    """The sandbox that the agent believes it works in: another one is announced with the next tool result."""
    loop_window: Mapped[Json | None]
    """What the circuit breaker remembers of the last calls."""
    segment: Mapped[Json | None]
    """State of the context's current segment; nothing while the conversation was never compacted."""
    segment_start: Mapped[int]
    """``seq`` of the first message that models still see, beside the system message."""
    context_tokens: Mapped[int]
    """Prompt and answer of the last model call, as the engine counted them; 0 when it did not."""
    last_seq: Mapped[int]
    epoch: Mapped[int] = mapped_column(sa.Integer)
    """The task's epoch in which it was opened."""
    superseded_at: Mapped[datetime | None]
    """When a rewind made it history: from then on nothing is appended, whoever tries."""
    inbox_seq: Mapped[int]
    """``seq`` of the newest message from a person that is in this thread."""
    acted_seq: Mapped[int]
    """``seq`` of the newest message from a person that the model has answered after reading it."""
    origin: Mapped[Json | None]
    """Of a copy that a rewind or a fork made: the conversation it was copied from, and its state at that point. See
    ``branching/restore.py``.
    """
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())


class Message(Base):
    """One message in wire form. ``body`` is canonical JSON in bytes: prefixes stay byte-stable, and NULs are kept."""

    __tablename__ = "messages"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str]
    thread_id: Mapped[str] = mapped_column(sa.ForeignKey("threads.id"))
    seq: Mapped[int]
    step_key: Mapped[str] = mapped_column(unique=True)
    body: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())

    __table_args__ = (sa.UniqueConstraint("thread_id", "seq"),)


class ToolCallRun(Base):
    """A tool call that was begun: if its sandbox dies before the result is stored, the agent is told it may have run."""

    __tablename__ = "tool_call_runs"

    step_key: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str]
    thread_id: Mapped[str]
    sandbox_id: Mapped[str]
    effect: Mapped[str | None]
    """SHA-256 of what the call was about to write, for calls that must not be applied twice."""
    started_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
