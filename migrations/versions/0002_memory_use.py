"""memory can be switched off; nothing of verification is remembered"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    empty = sa.text("'{}'")
    op.add_column("projects", sa.Column("memory", postgresql.JSONB(), server_default=empty, nullable=False))
    op.add_column("tasks", sa.Column("memory", postgresql.JSONB(), server_default=empty, nullable=False))
    op.add_column("tasks", sa.Column("reflected_at", sa.DateTime(timezone=True), nullable=True))
    # Acceptance commands that the platform had kept; the index follows by itself.
    op.execute(
        "UPDATE memories SET deleted_at = now(), revision = revision + 1, index_due_at = now()"
        " WHERE origin = 'platform' AND kind = 'command' AND deleted_at IS NULL"
    )


def downgrade() -> None:
    op.drop_column("tasks", "reflected_at")
    op.drop_column("tasks", "memory")
    op.drop_column("projects", "memory")
