"""The statements that every model call runs: reserve and close. Each is one round trip and one commit.

Written out, because they are the platform's hottest SQL: a row of ``budget_accounts`` is locked from where a statement
gets to it until its commit is on disk, and no turn of an event loop lies in between.

Locks are taken in one order, task's account, project's account, ledger entries, so that no two calls wait for each other.
A sub-select that counts what the step before returned makes PostgreSQL keep to it.
"""

from typing import Any, Final

import sqlalchemy as sa

_TYPES: Final[dict[str, Any]] = {
    "project_id": sa.Text,
    "task_id": sa.Text,
    "thread_id": sa.Text,
    "id": sa.Text,
    "request_id": sa.Text,
    "step_key": sa.Text,
    "request_digest": sa.Text,
    "conversation": sa.Text,
    "max_replays": sa.Integer,
    "content_type": sa.Text,
    "body": sa.LargeBinary,
    "expires_at": sa.DateTime(timezone=True),
    "kind": sa.Text,
    "model": sa.Text,
    "priced": sa.Boolean,
    "refuse_unpriced": sa.Boolean,
    "attempt": sa.Integer,
    "tokens": sa.BigInteger,
    "cost": sa.Numeric,
    "day": sa.Date,
    "time": sa.DateTime(timezone=True),
    "state": sa.Text,
    "settled_at": sa.DateTime(timezone=True),
    "estimated": sa.Boolean,
    "prompt_tokens": sa.BigInteger,
    "cached_tokens": sa.BigInteger,
    "completion_tokens": sa.BigInteger,
    "seconds": sa.Numeric,
}


def _prepared(statement: str, *names: str) -> sa.TextClause:
    return sa.text(statement).bindparams(*(sa.bindparam(name, type_=_TYPES[name]) for name in names))


OPEN_ACCOUNTS: Final = _prepared(
    """
    INSERT INTO budget_accounts
        (scope, day, tokens, cost_usd, steps, wall_s, reserved_tokens, reserved_cost_usd)
    SELECT scope, day, 0, 0, 0, 0, 0, 0 FROM (
        SELECT id AS scope, DATE 'epoch' AS day FROM tasks WHERE id = :task_id AND project_id = :project_id
        UNION ALL SELECT :project_id, :day
    ) AS missing
    ORDER BY day
    ON CONFLICT DO NOTHING
    """,
    "project_id",
    "task_id",
    "day",
)
"""Makes the rows that a reservation locks; done once for each task, and once a day for each project."""

RESERVE: Final = _prepared(
    """
    WITH task AS MATERIALIZED (
        SELECT account.*, tasks.budget,
            coalesce((tasks.inherited->>'tokens')::bigint, 0) AS inherited_tokens,
            coalesce((tasks.inherited->>'cost_usd')::numeric, 0) AS inherited_cost_usd,
            coalesce((tasks.inherited->>'steps')::bigint, 0) AS inherited_steps
        FROM budget_accounts AS account JOIN tasks ON tasks.id = account.scope
        WHERE account.scope = :task_id AND account.day = DATE 'epoch' AND tasks.project_id = :project_id
        FOR NO KEY UPDATE OF account
    ),
    project AS MATERIALIZED (
        SELECT account.*, coalesce(projects.budget, '{}') AS budget,
            CASE projects.budget->>'period'
                WHEN 'day' THEN :day WHEN 'month' THEN date_trunc('month', :day)::date ELSE DATE 'epoch'
            END AS since
        FROM budget_accounts AS account LEFT JOIN projects ON projects.id = account.scope
        WHERE account.scope = :project_id AND account.day = :day AND (SELECT count(*) FROM task) >= 0
        FOR NO KEY UPDATE OF account
    ),
    earlier AS (
        SELECT coalesce(sum(account.tokens + account.reserved_tokens), 0) AS tokens,
            coalesce(sum(account.cost_usd + account.reserved_cost_usd), 0) AS cost_usd,
            coalesce(sum(account.steps), 0) AS steps
        FROM project JOIN budget_accounts AS account ON account.scope = project.scope
            AND account.day >= project.since AND account.day < project.day
        WHERE project.budget ?| ARRAY['max_tokens', 'max_cost_usd', 'max_steps']
    ),
    levels AS (
        SELECT 1 AS rank, 'task' AS level, budget, tokens + reserved_tokens + inherited_tokens AS tokens,
            cost_usd + reserved_cost_usd + inherited_cost_usd AS cost_usd, steps + inherited_steps AS steps
        FROM task
        UNION ALL
        SELECT 2, 'project', project.budget, project.tokens + project.reserved_tokens + earlier.tokens,
            project.cost_usd + project.reserved_cost_usd + earlier.cost_usd, project.steps + earlier.steps
        FROM project, earlier
    ),
    asked AS MATERIALIZED (
        SELECT CASE WHEN :kind = 'model' AND NOT EXISTS (
            SELECT 1 FROM ledger_entries
            WHERE project_id = :project_id AND step_key = :step_key AND state <> 'released'
        ) THEN 1 ELSE 0 END AS steps
    ),
    refusal AS MATERIALIZED (
        SELECT level, name, spent, requested, maximum FROM (
            SELECT 0 AS rank, 'account' AS level, 'missing' AS name, 0::numeric AS spent, 0::numeric AS requested,
                0::numeric AS maximum
            WHERE NOT EXISTS (SELECT 1 FROM project) OR (:task_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM task))
            UNION ALL
            SELECT 0, 'answer', 'stored', 0, 0, 0 FROM stored_answers
            WHERE :request_digest IS NOT NULL AND project_id = :project_id
                AND conversation = :conversation AND step_key = :step_key
                AND request_digest = :request_digest AND expires_at > :time AND replays < :max_replays
            UNION ALL
            SELECT rank, level, 'max_tokens', tokens, :tokens, (budget->>'max_tokens')::numeric FROM levels
            WHERE tokens + :tokens > (budget->>'max_tokens')::numeric
            UNION ALL
            SELECT rank, level, 'max_cost_usd', cost_usd, :cost, (budget->>'max_cost_usd')::numeric FROM levels
            WHERE :cost > 0 AND cost_usd + :cost > (budget->>'max_cost_usd')::numeric
            UNION ALL
            SELECT rank, level, 'max_steps', levels.steps, asked.steps, (budget->>'max_steps')::numeric
            FROM levels, asked
            WHERE asked.steps > 0 AND levels.steps + asked.steps > (budget->>'max_steps')::numeric
            UNION ALL
            SELECT rank, level, 'price', cost_usd, 0, (budget->>'max_cost_usd')::numeric FROM levels
            WHERE :refuse_unpriced AND NOT :priced AND :kind = 'model' AND budget ? 'max_cost_usd'
        ) AS refusals
        ORDER BY rank LIMIT 1
    ),
    stale AS (
        UPDATE ledger_entries SET state = 'ambiguous'
        WHERE project_id = :project_id AND step_key = :step_key AND request_id <> :request_id AND state = 'reserved'
            AND NOT EXISTS (SELECT 1 FROM refusal)
    ),
    entry AS (
        INSERT INTO ledger_entries (id, project_id, task_id, thread_id, request_id, step_key, attempt, kind, model,
            priced, state, estimated, steps, reserved_tokens, reserved_cost_usd, prompt_tokens, cached_tokens,
            completion_tokens, cost_usd, seconds, created_at, settled_at)
        SELECT :id, :project_id, :task_id, :thread_id, :request_id, :step_key, :attempt, :kind, :model,
            :priced, 'reserved', false, asked.steps, :tokens, :cost, 0, 0, 0, 0, 0, :time, NULL
        FROM asked WHERE NOT EXISTS (SELECT 1 FROM refusal)
        ON CONFLICT (request_id) DO NOTHING
        RETURNING id, steps
    ),
    charged AS (
        UPDATE budget_accounts AS account SET reserved_tokens = account.reserved_tokens + :tokens,
            reserved_cost_usd = account.reserved_cost_usd + :cost, steps = account.steps + entry.steps
        FROM entry
        WHERE (account.scope = :task_id AND account.day = DATE 'epoch')
            OR (account.scope = :project_id AND account.day = :day)
    )
    SELECT (SELECT id FROM entry) AS id, refusal.*, (SELECT budget->>'period' FROM project) AS period,
        (SELECT since FROM project) AS since
    FROM (SELECT 1) AS one LEFT JOIN refusal ON true
    """,
    "project_id",
    "task_id",
    "thread_id",
    "id",
    "request_id",
    "step_key",
    "request_digest",
    "conversation",
    "max_replays",
    "kind",
    "model",
    "priced",
    "refuse_unpriced",
    "attempt",
    "tokens",
    "cost",
    "day",
    "time",
)
"""One row: ``id`` of the new entry, or what refused it, or neither when the request id was used before."""

_CLOSE = """
    WITH task AS MATERIALIZED (
        SELECT 1 FROM budget_accounts WHERE scope = :task_id AND day = DATE 'epoch' FOR NO KEY UPDATE
    ),
    project AS MATERIALIZED (
        SELECT 1 FROM budget_accounts
        WHERE scope = :project_id AND day = :day AND (SELECT count(*) FROM task) >= 0
        FOR NO KEY UPDATE
    ),
    entry AS (
        UPDATE ledger_entries SET state = :state, estimated = :estimated, prompt_tokens = :prompt_tokens,
            cached_tokens = :cached_tokens, completion_tokens = :completion_tokens, cost_usd = :cost,
            seconds = :seconds, settled_at = :settled_at
        WHERE id = :id AND state IN ('reserved', 'ambiguous') AND (SELECT count(*) FROM project) >= 0
        RETURNING id, steps, reserved_tokens, reserved_cost_usd
    ),
    charged AS (
        UPDATE budget_accounts AS account SET
            reserved_tokens = account.reserved_tokens - entry.reserved_tokens,
            reserved_cost_usd = account.reserved_cost_usd - entry.reserved_cost_usd,
            tokens = account.tokens + :prompt_tokens + :completion_tokens,
            cost_usd = account.cost_usd + :cost,
            steps = account.steps - CASE WHEN :state = 'released' THEN entry.steps ELSE 0 END
        FROM entry
        WHERE :state <> 'ambiguous' AND ((account.scope = :task_id AND account.day = DATE 'epoch')
            OR (account.scope = :project_id AND account.day = :day))
    )
"""
_CLOSE_NAMES = (
    "project_id",
    "task_id",
    "day",
    "id",
    "state",
    "estimated",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "cost",
    "seconds",
    "settled_at",
)

CLOSE: Final = _prepared(_CLOSE + "SELECT id FROM entry", *_CLOSE_NAMES)  # noqa: S608  two constants
"""Gives the id of the entry when it was open. An entry that becomes ambiguous holds its reservation."""

CLOSE_WITH_ANSWER: Final = _prepared(
    _CLOSE  # noqa: S608  two constants
    + """,
    answer AS (
        INSERT INTO stored_answers
            (project_id, conversation, step_key, request_digest, content_type, body, replays, expires_at)
        SELECT :project_id, :conversation, :step_key, :request_digest, :content_type, :body, 0, :expires_at FROM entry
        ON CONFLICT (project_id, conversation) DO UPDATE SET step_key = excluded.step_key,
            request_digest = excluded.request_digest, content_type = excluded.content_type, body = excluded.body,
            replays = 0, expires_at = excluded.expires_at
    )
    SELECT id FROM entry
    """,
    *_CLOSE_NAMES,
    "conversation",
    "step_key",
    "request_digest",
    "content_type",
    "body",
    "expires_at",
)
"""The same, with the answer: either both are there afterwards, or a repeated call is made again."""

REPLAY: Final = _prepared(
    """
    UPDATE stored_answers SET replays = replays + 1
    WHERE project_id = :project_id AND conversation = :conversation AND step_key = :step_key
        AND request_digest = :request_digest
    RETURNING content_type, body
    """,
    "project_id",
    "conversation",
    "step_key",
    "request_digest",
)
