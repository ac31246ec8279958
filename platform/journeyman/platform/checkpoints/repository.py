"""Making checkpoints."""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints.models import SnapshotRow
from journeyman.platform.events.log import NewEvent, append_all
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Json
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
    WITH made AS (
        INSERT INTO checkpoints (id, project_id, task_id, event_seq, thread_id, thread_cursors, thread_state, plan_revision,
            snapshot, head_snapshot, epoch, submitted, budget, step_key, created_at)
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
    ),
    kept AS (
        INSERT INTO snapshots (project_id, digest, files, bytes)
        SELECT :project_id, :snapshot, :files, :bytes FROM made WHERE :files IS NOT NULL
        ON CONFLICT DO NOTHING
    ),
    noted AS (
        UPDATE threads SET snapshot = CASE WHEN :files IS NULL THEN snapshot ELSE :snapshot END, loop_window = :loop_window
        FROM made WHERE threads.id = :thread_id AND :watched
    )
    SELECT id FROM made
    """
).bindparams(
    *(
        sa.bindparam(name, type_=sa.Text)
        for name in ("id", "project_id", "task_id", "thread_id", "snapshot", "step_key")
    ),
    *(sa.bindparam(name, type_=sa.BigInteger) for name in ("event_seq", "files", "bytes")),
    sa.bindparam("plan_revision", type_=sa.Integer),
    *(sa.bindparam(name, type_=sa.Boolean) for name in ("submitted", "watched")),
    sa.bindparam("loop_window", type_=JSONB),
)


@dataclass(frozen=True, slots=True)
class Point:
    """A checkpoint that is to be made. ``submitted``: the thread's role handed over in this step."""

    project_id: str
    task_id: str
    thread_id: str | None
    subtask_id: str | None
    plan_revision: int
    snapshot: str
    step_key: str
    submitted: bool = False

    @property
    def id(self) -> str:
        return derived_id("checkpoint", self.step_key)

    def event(self) -> NewEvent:
        """What the log says of it."""
        return NewEvent(
            EventType.CHECKPOINT_CREATED,
            {"checkpoint_id": self.id, "snapshot": self.snapshot, "plan_revision": self.plan_revision},
            thread_id=self.thread_id,
            subtask_id=self.subtask_id,
            step_key=step_keys.part(self.step_key, "checkpoint"),
        )


@dataclass(frozen=True, slots=True)
class AfterStep:
    """What is noted in the row of the checkpoint's thread. ``taken``: files and bytes of a new snapshot, which becomes its newest."""

    loop_window: Json | None
    taken: tuple[int, int] | None


async def create(session: AsyncSession, point: Point) -> str:
    """Make a checkpoint with its event; once, however often the step is repeated. Returns its id.

    Raises :class:`Conflict` with code ``superseded`` when the task was rewound meanwhile to before the thread's step.
    """
    [event] = await append_all(session, point.task_id, [point.event()])
    if event.new:
        await store(session, point, event.seq)
    return point.id


async def store(session: AsyncSession, point: Point, event_seq: int, after: AfterStep | None = None) -> None:
    """Make the checkpoint whose event has just been written. Raises :class:`Conflict` as :func:`create` does."""
    files, size = (None, None) if after is None or after.taken is None else after.taken
    made = await session.scalar(
        _CREATE,
        {
            "id": point.id,
            "project_id": point.project_id,
            "task_id": point.task_id,
            "event_seq": event_seq,
            "thread_id": point.thread_id,
            "plan_revision": point.plan_revision,
            "snapshot": point.snapshot,
            "step_key": point.step_key,
            "submitted": point.submitted,
            "files": files,
            "bytes": size,
            "watched": after is not None,
            "loop_window": None if after is None else after.loop_window,
        },
    )
    if made is None:
        raise Conflict(f"Thread {point.thread_id} is history since its task was rewound.", code="superseded")
