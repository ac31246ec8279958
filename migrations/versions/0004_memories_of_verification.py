"""remove memories that tell of verification"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_REMOVE = r"""
UPDATE memories AS memory
SET deleted_at = now(), revision = revision + 1, index_due_at = now()
WHERE memory.deleted_at IS NULL AND memory.origin <> 'person' AND memory.edited_at IS NULL AND (
    EXISTS (
        SELECT FROM events
        WHERE events.task_id = memory.task_id AND events.type = 'acceptance.failed' AND events.time <= memory.created_at
    )
    OR EXISTS (
        SELECT FROM (
            SELECT jsonb_array_elements_text(tasks.acceptance) FROM tasks WHERE tasks.id = memory.task_id
            UNION
            SELECT jsonb_array_elements_text(plans.acceptance) FROM plans WHERE plans.task_id = memory.task_id
        ) AS commands (command)
        WHERE
            strpos(
                regexp_replace(lower(memory.text), '[\s`''"\\]', '', 'g'),
                nullif(regexp_replace(lower(command), '[\s`''"\\]', '', 'g'), '')
            ) > 0
            OR EXISTS (
                SELECT FROM regexp_split_to_table(lower(command), '[][\s;|&()<>={},`''"\\]+|::') AS word
                CROSS JOIN LATERAL (VALUES (trim(word, './')), (regexp_replace(word, '^.*/', ''))) AS names (name)
                WHERE length(name) >= 4 AND word !~ '^/(bin|dev|etc|opt|proc|sbin|usr|var)/'
                    AND (name ~ '/|\w\.[a-z]\w*$|^(test|spec)_|_(test|spec)s?$')
                    AND strpos(lower(memory.text), name) > 0
            )
    )
)
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # Acceptance commands, what they name, and what was written after a failed verification. The index follows by itself.
    op.execute(_REMOVE)


def downgrade() -> None:
    """Nothing: what was removed stays removed."""
