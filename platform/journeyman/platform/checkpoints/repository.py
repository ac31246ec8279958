"""Making checkpoints."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints.models import Rewind, SnapshotRow
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.errors import Conflict
from journeyman.platform.kit.ids import derived_id


async def note_snapshot(session: AsyncSession, project_id: str, digest: str, files: int, size: int) -> None:
    await session.execute(
        insert(SnapshotRow)
        .values(project_id=project_id, digest=digest, files=files, bytes=size)
        .on_conflict_do_nothing()
    )


_CREATE: Final = sa.text(
    """
    INSERT INTO checkpoints (id, project_id, task_id, event_seq, thread_id, thread_cursors, thread_state, plan_revision, snapshot,
        head_snapshot, epoch, submitted, budget, step_key, created_at)
    SELECT :id, :project_id, :task_id, :event_seq, :thread_id,
        (SELECT coalesce(jsonb_object_agg(id, last_seq), '{}') FROM threads
            WHERE task_id = :task_id AND superseded_at IS NULL),
        coalesce((SELECT jsonb_build_object('segment', segment, 'segment_start', segment_start, 'inbox_seq', inbox_seq,
            'acted_seq', acted_seq, 'base_snapshot', base_snapshot) FROM threads WHERE id = :thread_id), '{}'),
        :plan_revision, :snapshot, task.head_snapshot, task.epoch, :submitted,
        coalesce((SELECT jsonb_build_object('tokens', tokens, 'cost_usd', cost_usd::text, 'steps', steps)
            FROM budget_accounts WHERE scope = :task_id AND day = DATE 'epoch'),
            '{"tokens": 0, "cost_usd": "0", "steps": 0}') || jsonb_build_object('wall_s',
            (task.worked_s + coalesce(extract(epoch FROM now() - task.working_since), 0))::bigint),
        :step_key, now() FROM tasks AS task WHERE task.id = :task_id
        AND NOT EXISTS (SELECT 1 FROM threads WHERE id = :thread_id AND superseded_at IS NOT NULL)
    RETURNING id
    """
).bindparams(
    *(
        sa.bindparam(name, type_=sa.Text)
        for name in ("id", "project_id", "task_id", "thread_id", "snapshot", "step_key")
    ),
    sa.bindparam("event_seq", type_=sa.BigInteger),
    sa.bindparam("plan_revision", type_=sa.Integer),
    sa.bindparam("submitted", type_=sa.Boolean),
)


async def create(
    session: AsyncSession,
    *,
    project_id: str,
    task_id: str,
    thread_id: str | None,
    subtask_id: str | None,
    plan_revision: int,
    snapshot: str,
    step_key: str,
    submitted: bool = False,
) -> str:
    """Make the checkpoint of a step, with its event; made once however often the step is repeated. Returns its id.

    ``submitted``: the thread's role handed over in this step. Raises :class:`Conflict` with code ``superseded`` when the
    task was rewound meanwhile to before the thread's step.
    """
    checkpoint_id = derived_id("checkpoint", step_key)
    event = await append(
        session,
        task_id,
        EventType.CHECKPOINT_CREATED,
        {"checkpoint_id": checkpoint_id, "snapshot": snapshot, "plan_revision": plan_revision},
        thread_id=thread_id,
        subtask_id=subtask_id,
        step_key=f"{step_key}:checkpoint",
    )
    if not event.new:
        return checkpoint_id
    made = await session.scalar(
        _CREATE,
        {
            "id": checkpoint_id,
            "project_id": project_id,
            "task_id": task_id,
            "event_seq": event.seq,
            "thread_id": thread_id,
            "plan_revision": plan_revision,
            "snapshot": snapshot,
            "step_key": step_key,
            "submitted": submitted,
        },
    )
    if made is None:
        raise Conflict(f"Thread {thread_id} is history since its task was rewound.", code="superseded")
    return checkpoint_id


async def pending_rewind(session: AsyncSession, task_id: str) -> str | None:
    """The oldest rewind of the task that was asked for and is not applied."""
    return await session.scalar(
        sa.select(Rewind.id)
        .where(Rewind.task_id == task_id, Rewind.applied_at.is_(None))
        .order_by(Rewind.requested_at, Rewind.id)
        .limit(1)
    )
