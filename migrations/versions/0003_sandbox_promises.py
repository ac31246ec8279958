"""sandbox promises"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "sandbox_promises",
        sa.Column("sandbox_id", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("sandbox_id", name=op.f("pk_sandbox_promises")),
    )
    op.create_index(op.f("ix_sandbox_promises_node"), "sandbox_promises", ["node"], unique=False)
    op.add_column("sandbox_nodes", sa.Column("memory_bytes", sa.BigInteger(), nullable=True))
    op.add_column(
        "tasks", sa.Column("sandbox_wait", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True)
    )


def downgrade() -> None:
    op.drop_column("tasks", "sandbox_wait")
    op.drop_column("sandbox_nodes", "memory_bytes")
    op.drop_index(op.f("ix_sandbox_promises_node"), table_name="sandbox_promises")
    op.drop_table("sandbox_promises")
