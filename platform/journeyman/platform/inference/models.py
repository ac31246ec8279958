"""The ledger: every model call and sandbox second, reserved before and settled after."""

from datetime import datetime
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
    state: Mapped[str]
    """``reserved``, ``settled``, ``released`` (never billed) or ``ambiguous`` (a crash hid whether it was)."""
    estimated: Mapped[bool]
    reserved_tokens: Mapped[int]
    reserved_cost_usd: Mapped[Decimal] = mapped_column(sa.Numeric(14, 8))
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    cost_usd: Mapped[Decimal] = mapped_column(sa.Numeric(14, 8))
    seconds: Mapped[Decimal] = mapped_column(sa.Numeric(12, 3))
    created_at: Mapped[datetime]
    settled_at: Mapped[datetime | None]

    __table_args__ = (
        sa.Index("ix_ledger_entries_task", "task_id", "created_at"),
        sa.Index("ix_ledger_entries_project", "project_id", "created_at"),
        sa.Index("ix_ledger_entries_step", "step_key"),
    )
