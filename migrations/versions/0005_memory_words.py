"""index memories by their words"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_index(
        "ix_memories_words",
        "memories",
        [sa.text("to_tsvector('english', text)")],
        postgresql_using="gin",
        postgresql_where=sa.text("deleted_at IS NULL AND superseded_by IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_memories_words", table_name="memories")
