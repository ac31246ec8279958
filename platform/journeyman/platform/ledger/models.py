"""The ledger: every model call and sandbox second, reserved before and settled after; and its sums by budget."""

from datetime import date, datetime
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base


class LedgerEntry(Base):
    __tablename__ = "ledger_entries"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    task_id: Mapped[str | None]
    thread_id: Mapped[str | None]
    request_id: Mapped[str] = mapped_column(unique=True)
    """Step key and attempt."""
    step_key: Mapped[str]
    attempt: Mapped[int] = mapped_column(sa.Integer)
    kind: Mapped[str]
    """``model``, ``embedding`` or ``sandbox``."""
    model: Mapped[str | None]
    priced: Mapped[bool] = mapped_column(default=True)
    """False for a call whose model no price matched: its cost of 0 means that nobody knows it."""
    steps: Mapped[int] = mapped_column(sa.SmallInteger, default=0)
    """1 for the entry that counts its step against the budgets' ``max_steps``; further attempts of the step are 0."""
    state: Mapped[str]
    """``reserved``, ``settled``, ``released`` (never billed) or ``ambiguous`` (a crash hid whether it was)."""
    estimated: Mapped[bool]
    reserved_tokens: Mapped[int]
    reserved_cost_usd: Mapped[Decimal] = mapped_column(sa.Numeric(20, 8))
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    cost_usd: Mapped[Decimal] = mapped_column(sa.Numeric(20, 8))
    seconds: Mapped[Decimal] = mapped_column(sa.Numeric(12, 3))
    created_at: Mapped[datetime]
    settled_at: Mapped[datetime | None]

    __table_args__ = (
        sa.Index("ix_ledger_entries_task", "task_id", "created_at"),
        sa.Index("ix_ledger_entries_project", "project_id", "created_at"),
        sa.Index("ix_ledger_entries_step", "step_key"),
        sa.Index("ix_ledger_entries_ambiguous", "id", postgresql_where=sa.text("state = 'ambiguous'")),
    )


class Account(Base):
    """What one level of the budget tree has used and promised: the sums of its ledger entries, kept with them.

    One row a task, and one row a project and day (UTC), so that a project's budget can be of a day, a month, or for good.
    Locked in this order: task, then project, then ledger entries.
    """

    __tablename__ = "budget_accounts"

    scope: Mapped[str] = mapped_column(primary_key=True)
    """Id of the task or of the project."""
    day: Mapped[date] = mapped_column(primary_key=True)
    """Of a project: when the calls were reserved. Of a task: 1970-01-01."""
    tokens: Mapped[int] = mapped_column(default=0)
    cost_usd: Mapped[Decimal] = mapped_column(sa.Numeric(24, 8), default=Decimal(0))
    steps: Mapped[int] = mapped_column(default=0)
    """Model calls, each step once however often it was tried; those in flight among them."""
    wall_s: Mapped[Decimal] = mapped_column(sa.Numeric(20, 3), default=Decimal(0))
    """Of a project: seconds that its tasks worked, up to the last time each of them stopped."""
    reserved_tokens: Mapped[int] = mapped_column(default=0)
    reserved_cost_usd: Mapped[Decimal] = mapped_column(sa.Numeric(24, 8), default=Decimal(0))


class BudgetWarning(Base):
    """A warning that was given, so that it is given once for each limit."""

    __tablename__ = "budget_warnings"

    scope: Mapped[str] = mapped_column(primary_key=True)
    warning: Mapped[str] = mapped_column(primary_key=True)
    """Limit, its value and the period."""
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())


class StoredAnswer(Base):
    """The last whole answer to a conversation of the platform's own, for a worker that died before it had stored it."""

    __tablename__ = "stored_answers"

    project_id: Mapped[str] = mapped_column(primary_key=True)
    conversation: Mapped[str] = mapped_column(primary_key=True)
    """The thread, or the step for calls without one. The next answer takes the place of the last."""
    step_key: Mapped[str]
    request_digest: Mapped[str]
    """SHA-256 of the request's body: another question under the same step key is another call."""
    content_type: Mapped[str]
    body: Mapped[bytes] = mapped_column(sa.LargeBinary)
    """What the engine sent, deflated."""
    replays: Mapped[int] = mapped_column(sa.Integer)
    expires_at: Mapped[datetime] = mapped_column(index=True)
