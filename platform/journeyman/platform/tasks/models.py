"""Tasks."""

from datetime import datetime
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class Task(Base):
    """One job. ``last_seq`` is the head of its event log: whoever writes an event increments it, and so waits in line."""

    __tablename__ = "tasks"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("projects.id"))
    title: Mapped[str]
    instruction: Mapped[str]
    workspace: Mapped[Json]
    environment: Mapped[Json]
    acceptance: Mapped[list[str]]
    agent_profile: Mapped[str]
    model_tier: Mapped[str]
    models: Mapped[Json]
    """Model names by role, where the task names them itself."""
    budget: Mapped[Json]
    approval_policy: Mapped[Json]
    """``{plan, tools, rules, expires_after_s, escalate_after_s}``; see ``approvals/schemas.py``."""
    memory: Mapped[Json] = mapped_column(default=dict, server_default=sa.text("'{}'"))
    """Whether it may recall and keep memories of the project: ``{read, write}``; what is left out is allowed."""
    reflected_at: Mapped[datetime | None]
    """When its lessons were kept, after its end."""
    labels: Mapped[Json]
    """What the submitter calls ``metadata``."""
    state: Mapped[str]
    paused_reason: Mapped[str | None]
    paused_detail: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    """What the pause was for: of a budget ``{level, limit, spent, of, period}``."""
    sandbox_wait: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    """``{purpose, reason, needed_bytes, free_bytes, capacity_bytes}`` of a sandbox that waits for memory."""
    waiting_for: Mapped[list[str]]
    verified: Mapped[bool | None]
    """Unknown until the task ends; then whether every acceptance command has a passing receipt."""
    failure: Mapped[Json | None]
    """``{code, message, retryable}`` of a task that failed or errored."""
    summary: Mapped[str | None]
    cancel_requested_at: Mapped[datetime | None]
    plan_revision: Mapped[int] = mapped_column(sa.Integer)
    initial_snapshot: Mapped[str | None]
    head_snapshot: Mapped[str | None]
    """The workspace with all approved work in it."""
    last_seq: Mapped[int]
    message_count: Mapped[int]
    """``seq`` of the newest message from a person."""
    epoch: Mapped[int] = mapped_column(sa.Integer)
    """How often the task was rewound: the threads of earlier epochs are history."""
    forked_from: Mapped[Json | None]
    """``{task_id, checkpoint_id}`` of a task that began as a fork."""
    inherited: Mapped[Json]
    """What a fork's own ledger does not show: ``{tokens, cost_usd, steps, wall_s}`` spent before it, counted against its limits."""
    trace_context: Mapped[Json]
    """W3C ``traceparent`` of the submitting request, so that the task's spans join its trace."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    worked_s: Mapped[Decimal] = mapped_column(sa.Numeric(14, 3), default=Decimal(0))
    """Seconds that the task has worked, up to the last time it stopped; ``working_since`` begins the present stretch."""
    working_since: Mapped[datetime | None]
    """None while the task is queued, paused, waiting for approval, or has ended. See :mod:`.wall_time`."""

    def model_for(self, role: str) -> str:
        """The model that the task names for this role, else its tier, which the gateway maps to a model.

        All roles work on one tier: a plan or a review by a weaker model than the one that does the work costs more in
        failed rounds than it saves.
        """
        return str(self.models.get(role) or self.model_tier)

    __table_args__ = (
        sa.Index("ix_tasks_project_created", "project_id", "created_at", "id"),
        sa.Index("ix_tasks_state", "state"),
        sa.Index("ix_tasks_working", "project_id", postgresql_where=sa.text("working_since IS NOT NULL")),
        sa.Index(
            "ix_tasks_paused", "project_id", "paused_reason", postgresql_where=sa.text("paused_reason IS NOT NULL")
        ),
    )
