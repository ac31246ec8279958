"""Organizations own projects; projects own everything else. API keys belong to a project."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from journeyman.platform.kit.database import Base, Json


class Organization(Base):
    __tablename__ = "organizations"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())


class Project(Base):
    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(primary_key=True)
    organization_id: Mapped[str] = mapped_column(sa.ForeignKey("organizations.id"))
    name: Mapped[str]
    budget: Mapped[Json] = mapped_column(server_default=sa.text("'{}'"))
    """Limits over all tasks: ``{max_tokens, max_cost_usd, max_wall_s, max_steps, period}``."""
    memory: Mapped[Json] = mapped_column(server_default=sa.text("'{}'"))
    """Whether its tasks may recall and keep memories: ``{read, write}``; what is left out is allowed."""
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())


class ApiKey(Base):
    """A key is shown once; the table holds its SHA-256 alone. The key has 256 random bits, so a plain hash suffices."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("projects.id"), index=True)
    name: Mapped[str]
    role: Mapped[str]
    """``operator``, ``admin`` or ``member``."""
    hash: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=sa.func.now())
    revoked_at: Mapped[datetime | None]
