"""The copies that a rewind or a fork is made of, and what is reset: a few statements, however long the conversations are."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.board.models import Note
from journeyman.platform.branching.history import MessageState
from journeyman.platform.branching.restore import Restored, SubtaskState
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.plans.models import Plan, Subtask
from journeyman.platform.steering.models import PersonMessage
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads.models import Thread

_COPY_MESSAGES: Final = sa.text(
    """
    WITH copied AS (SELECT * FROM unnest(:old_ids, :new_ids, :cursors) AS m(old_id, new_id, cursor))
    INSERT INTO messages (id, project_id, task_id, thread_id, seq, step_key, body, created_at)
    SELECT 'msg_' || left(encode(sha256(convert_to(key.new, 'UTF8')), 'hex'), 32), message.project_id, :task_id,
        copied.new_id, message.seq, key.new, message.body, message.created_at
    FROM copied
    JOIN messages AS message ON message.thread_id = copied.old_id AND message.seq <= copied.cursor
    CROSS JOIN LATERAL (SELECT copied.new_id || substr(message.step_key, length(copied.old_id) + 1) AS new) AS key
    """
).bindparams(
    sa.bindparam("task_id", type_=sa.Text),
    sa.bindparam("old_ids", type_=ARRAY(sa.Text)),
    sa.bindparam("new_ids", type_=ARRAY(sa.Text)),
    sa.bindparam("cursors", type_=ARRAY(sa.BigInteger)),
)

# A kept output is found by its thread and its name ``out_<step>_<call>``: its id is derived as ``kit.ids.derived_id`` does
# it. The bytes are shared by their digest.
_COPY_OUTPUTS: Final = sa.text(
    """
    WITH copied AS (SELECT * FROM unnest(:old_ids, :new_ids, :steps) AS m(old_id, new_id, step))
    INSERT INTO artifacts (id, project_id, task_id, kind, name, media_type, size, digest, created_at)
    SELECT 'art_' || left(encode(sha256(convert_to(concat_ws(chr(31), :task_id, 'tool_output',
            copied.new_id || ':' || output.name), 'UTF8')), 'hex'), 32),
        output.project_id, :task_id, output.kind, output.name, output.media_type, output.size, output.digest,
        output.created_at
    FROM artifacts AS output JOIN copied
        ON output.id = 'art_' || left(encode(sha256(convert_to(concat_ws(chr(31), :from_task_id, 'tool_output',
            copied.old_id || ':' || output.name), 'UTF8')), 'hex'), 32)
        AND substring(output.name FROM '^out_([0-9]+)_')::bigint <= copied.step
    WHERE output.task_id = :from_task_id AND output.kind = 'tool_output'
    """
).bindparams(
    sa.bindparam("task_id", type_=sa.Text),
    sa.bindparam("from_task_id", type_=sa.Text),
    sa.bindparam("old_ids", type_=ARRAY(sa.Text)),
    sa.bindparam("new_ids", type_=ARRAY(sa.Text)),
    sa.bindparam("steps", type_=ARRAY(sa.BigInteger)),
)


async def copy_threads(
    session: AsyncSession,
    restored: Restored,
    names: Mapping[str, str],
    *,
    project_id: str,
    from_task_id: str,
    task_id: str,
    epoch: int,
) -> None:
    """Copy the threads that are kept, each as it was at its cut, with the outputs that its agent may read again."""
    for kept in restored.kept:
        one, cut = kept.conversation, kept.cut
        session.add(
            Thread(
                id=names[kept.id],
                project_id=project_id,
                task_id=task_id,
                role=one.role,
                subtask_id=one.subtask_id,
                attempt=one.attempt,
                revision=restored.revision_of(kept),
                base_snapshot=cut.state.get("base_snapshot"),
                snapshot=cut.snapshot,
                sandbox_id=None,
                loop_window=None,
                segment=cut.state.get("segment"),
                segment_start=cut.state["segment_start"],
                context_tokens=0,
                last_seq=cut.cursor,
                epoch=epoch,
                superseded_at=None,
                inbox_seq=cut.state["inbox_seq"],
                acted_seq=cut.state["acted_seq"],
                origin=cut.model_dump(mode="json"),
            )
        )
    await session.flush()
    copied = {
        "task_id": task_id,
        "old_ids": [kept.id for kept in restored.kept],
        "new_ids": [names[kept.id] for kept in restored.kept],
    }
    await session.execute(_COPY_MESSAGES, {**copied, "cursors": [kept.cut.cursor for kept in restored.kept]})
    steps = [kept.cut.step for kept in restored.kept]
    await session.execute(_COPY_OUTPUTS, {**copied, "steps": steps, "from_task_id": from_task_id})


async def supersede(session: AsyncSession, task_id: str, epoch: int, moment: datetime) -> None:
    """Make the threads of earlier epochs history: nothing is appended to them any more."""
    await session.execute(
        sa.update(Thread)
        .where(Thread.task_id == task_id, Thread.epoch < epoch, Thread.superseded_at.is_(None))
        .values(superseded_at=moment)
        .execution_options(synchronize_session=False)
    )


async def set_subtasks(
    session: AsyncSession, project_id: str, task_id: str, subtasks: Sequence[SubtaskState], said: Mapping[str, str]
) -> None:
    """Set the progress of these subtasks, and mark that of all others of the task as superseded."""
    await session.execute(
        sa.update(Subtask)
        .where(Subtask.task_id == task_id)
        .values(state="superseded")
        .execution_options(synchronize_session=False)
    )
    positions: dict[int, int] = {}
    rows = []
    for one in subtasks:
        position = positions.get(one.revision, 0)
        positions[one.revision] = position + 1
        rows.append(
            {
                "task_id": task_id,
                "revision": one.revision,
                "subtask_id": one.id,
                "project_id": project_id,
                "position": position,
                "state": one.state,
                "rounds": one.rounds,
                "base_snapshot": one.coder.cut.state.get("base_snapshot") if one.coder else None,
                "snapshot": one.snapshot,
                "summary": said.get(one.coder.id) if one.coder else None,
            }
        )
    if rows:
        row = insert(Subtask).values(rows)
        changed = ("state", "rounds", "base_snapshot", "snapshot", "summary")
        await session.execute(
            row.on_conflict_do_update(
                index_elements=[Subtask.task_id, Subtask.revision, Subtask.subtask_id],
                set_={name: row.excluded[name] for name in changed},
            ).execution_options(synchronize_session=False)
        )


async def copy_plans(
    session: AsyncSession, task_id: str, to_project_id: str, to_task_id: str, revisions: Sequence[int]
) -> None:
    """Give another task these revisions of the plan."""
    rows = await session.scalars(sa.select(Plan).where(Plan.task_id == task_id, Plan.revision.in_(revisions)))
    session.add_all(
        Plan(
            id=derived_id("plan", to_task_id, plan.revision),
            project_id=to_project_id,
            task_id=to_task_id,
            revision=plan.revision,
            subtasks=plan.subtasks,
            acceptance=plan.acceptance,
            reason=plan.reason,
            author=plan.author,
        )
        for plan in rows.all()
    )
    await session.flush()


async def keep_messages(
    session: AsyncSession, task_id: str, messages: Mapping[int, MessageState], moment: datetime
) -> dict[int, MessageState]:
    """Set what people said back to how far it had come; what they said later, and agents have read, is set aside.

    What no agent has read yet is not part of what is undone. Returns all that is in force from now on.
    """
    rows = await session.scalars(sa.select(PersonMessage).where(PersonMessage.task_id == task_id))
    in_force: dict[int, MessageState] = {}
    for row in rows:
        state = messages.get(row.seq)
        if state is None:
            if row.state == "received":
                in_force[row.seq] = "received"
            elif row.set_aside_at is None:
                row.set_aside_at = moment
            continue
        in_force[row.seq] = state
        row.set_aside_at = None
        row.state = state
        if state == "received":
            row.delivered_at = None
        if state != "acted_on":
            row.acted_on_at = None
    await session.flush()
    return in_force


async def copy_messages_of_people(
    session: AsyncSession, project_id: str, task_id: str, to_task_id: str, messages: Mapping[int, MessageState]
) -> None:
    """Give another task what people had said, under the same numbers."""
    rows = await session.scalars(
        sa.select(PersonMessage).where(PersonMessage.task_id == task_id, PersonMessage.seq.in_(messages))
    )
    session.add_all(
        PersonMessage(
            id=derived_id("person_message", to_task_id, row.id),
            project_id=project_id,
            task_id=to_task_id,
            seq=row.seq,
            text=row.text,
            mode=row.mode,
            state=messages[row.seq],
            author=row.author,
            created_at=row.created_at,
            delivered_at=row.delivered_at if messages[row.seq] != "received" else None,
            acted_on_at=row.acted_on_at if messages[row.seq] == "acted_on" else None,
            set_aside_at=None,
        )
        for row in rows.all()
    )
    await session.flush()


async def keep_notes(session: AsyncSession, task_id: str, notes: Sequence[int], moment: datetime) -> None:
    """Keep the notes with these numbers on the board; those written later are set aside."""
    kept = Note.seq.in_(notes)
    await session.execute(
        sa.update(Note)
        .where(Note.task_id == task_id)
        .values(set_aside_at=sa.case((kept, None), else_=sa.func.coalesce(Note.set_aside_at, moment)))
        .execution_options(synchronize_session=False)
    )


async def copy_notes(
    session: AsyncSession, task: Task, from_task_id: str, notes: Sequence[int], names: Mapping[str, str], event_seq: int
) -> None:
    """Give another task these notes under their numbers; ``event_seq``: of the event that tells of them there."""
    rows = await session.scalars(sa.select(Note).where(Note.task_id == from_task_id, Note.seq.in_(notes)))
    session.add_all(
        Note(
            id=derived_id("note", task.id, row.id),
            project_id=task.project_id,
            task_id=task.id,
            seq=row.seq,
            kind=row.kind,
            text=row.text,
            closes=row.closes,
            role=row.role,
            thread_id=names.get(row.thread_id) if row.thread_id else None,
            subtask_id=row.subtask_id,
            event_seq=event_seq,
            epoch=task.epoch,
            step_key=step_keys.part(task.id, row.id),
            created_at=row.created_at,
            set_aside_at=None,
        )
        for row in rows.all()
    )
    await session.flush()
