"""Threads and their append-only messages."""

import json
from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.kit.ids import derived_id, new_id
from journeyman.platform.threads.models import Message, Thread, ToolCallRun


def thread_id_for(task_id: str, role: str, subtask_id: str | None, revision: int, attempt: int, epoch: int = 0) -> str:
    """The same conversation always gets the same id, whoever opens it. ``epoch``: the task's, which a rewind increments."""
    return derived_id("thread", task_id, role, subtask_id, revision, attempt, epoch)


def encode(body: dict[str, Any]) -> bytes:
    """A message as bytes: sorted keys, no white space, ASCII only, so that the same message is the same bytes."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def as_array(bodies: Iterable[bytes]) -> bytes:
    """Encoded messages as one JSON array, their bytes unchanged: that of a longer thread begins with that of a shorter."""
    return b"[" + b",".join(bodies) + b"]"


async def get_thread(session: AsyncSession, thread_id: str) -> Thread:
    thread = await session.get(Thread, thread_id)
    if thread is None:
        raise NotFound(f"There is no thread {thread_id}.")
    return thread


def refuse_superseded(thread: Thread) -> None:
    """Raise :class:`Conflict` for a thread of a branch that was left: a worker that wakes up late changes nothing."""
    if thread.superseded_at is not None:
        raise Conflict(f"Thread {thread.id} is history since its task was rewound.", code="superseded")


_APPEND: Final = """
    WITH head AS (
        UPDATE threads SET last_seq = last_seq + 1{noted}
        WHERE id = :thread_id AND superseded_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM messages WHERE step_key = :step_key)
        RETURNING last_seq, project_id, task_id
    )
    INSERT INTO messages (id, project_id, task_id, thread_id, seq, step_key, body)
    SELECT :id, project_id, task_id, :thread_id, last_seq, :step_key, :body FROM head
    RETURNING seq
    """
_VALUES: Final = (
    sa.bindparam("thread_id", type_=sa.Text),
    sa.bindparam("step_key", type_=sa.Text),
    sa.bindparam("id", type_=sa.Text),
    sa.bindparam("body", type_=sa.LargeBinary),
)
_APPEND_MESSAGE: Final = sa.text(_APPEND.format(noted="")).bindparams(*_VALUES)
# The turn is counted where the row is locked: another attempt may have begun a new segment meanwhile.
_APPEND_ANSWER: Final = sa.text(
    _APPEND.format(
        noted=""", context_tokens = :context_tokens, segment = CASE jsonb_typeof(segment) WHEN 'object' THEN segment ELSE
            :new_segment END || jsonb_build_object('turns', coalesce((segment->>'turns')::int, 0) + 1)"""
    )
).bindparams(*_VALUES, sa.bindparam("context_tokens", type_=sa.BigInteger), sa.bindparam("new_segment", type_=JSONB))


async def append_message(
    session: AsyncSession, thread_id: str, step_key: str, body: dict[str, Any]
) -> tuple[int, bool]:
    """Append a message; returns its ``seq`` and whether it is new. The same step key is stored once.

    Raises :class:`Conflict` with code ``superseded`` when the task was rewound to before: a worker that was cut off and
    wakes up late changes nothing.
    """
    return await _append(session, _APPEND_MESSAGE, thread_id, step_key, body)


async def append_answer(
    session: AsyncSession,
    thread_id: str,
    step_key: str,
    body: dict[str, Any],
    *,
    context_tokens: int,
    new_segment: Json,
) -> tuple[int, bool]:
    """Append a model's answer as :func:`append_message` does; if it is new, count it as a turn of the context's segment.

    ``new_segment``: the state in which the first segment begins.
    """
    noted = {"context_tokens": context_tokens, "new_segment": new_segment}
    return await _append(session, _APPEND_ANSWER, thread_id, step_key, body, noted)


async def _append(
    session: AsyncSession,
    statement: sa.TextClause,
    thread_id: str,
    step_key: str,
    body: dict[str, Any],
    noted: Json | None = None,
) -> tuple[int, bool]:
    await session.flush()
    values = {"thread_id": thread_id, "step_key": step_key, "id": new_id("message"), "body": encode(body)}
    seq = await session.scalar(statement, {**values, **(noted or {})})
    if seq is not None:
        return seq, True
    existing = await session.scalar(sa.select(Message.seq).where(Message.step_key == step_key))
    if existing is not None:
        return existing, False
    if await session.scalar(sa.select(Thread.id).where(Thread.id == thread_id)) is None:
        raise NotFound(f"There is no thread {thread_id}.")
    raise Conflict(f"Thread {thread_id} is history since its task was rewound.", code="superseded")


async def bodies(session: AsyncSession, thread_id: str) -> list[dict[str, Any]]:
    """All messages of the thread in wire form, in order, those of earlier segments among them."""
    rows = await session.scalars(sa.select(Message.body).where(Message.thread_id == thread_id).order_by(Message.seq))
    return [json.loads(body) for body in rows]


async def visible_bodies(session: AsyncSession, thread: Thread) -> list[tuple[str, bytes]]:
    """What a model is sent, each with its step key: the system message and the current segment. As they are stored, unread: one
    after the other, with commas, they are the array of the request.
    """
    rows = await session.execute(
        sa.select(Message.step_key, Message.body)
        .where(Message.thread_id == thread.id, sa.or_(Message.seq == 1, Message.seq >= thread.segment_start))
        .order_by(Message.seq)
    )
    return [(step_key, body) for step_key, body in rows]


async def note_snapshot(session: AsyncSession, thread_id: str, digest: str) -> None:
    """Make a snapshot the newest of the thread's workspace."""
    await session.execute(sa.update(Thread).where(Thread.id == thread_id).values(snapshot=digest))


async def ids_in_force(session: AsyncSession, task_id: str, role: str) -> list[str]:
    """The task's threads of the role that no rewind has superseded, in the order of their ids."""
    rows = await session.scalars(
        sa.select(Thread.id)
        .where(Thread.task_id == task_id, Thread.role == role, Thread.superseded_at.is_(None))
        .order_by(Thread.id)
    )
    return list(rows)


async def is_stored(session: AsyncSession, step_key: str) -> bool:
    """Whether there is a message under the step key, in whatever segment."""
    return await session.scalar(sa.select(Message.seq).where(Message.step_key == step_key)) is not None


async def messages_of_step(session: AsyncSession, thread_id: str, step: str) -> dict[str, dict[str, Any]]:
    """What is stored of one step, by step key: the model's answer, and the results of the calls that were done."""
    rows = await session.execute(
        sa.select(Message.step_key, Message.body).where(
            Message.thread_id == thread_id, Message.step_key.startswith(step_keys.within_step(step), autoescape=True)
        )
    )
    return {step_key: json.loads(body) for step_key, body in rows}


_CALL_VALUES: Final = ("step_key", "project_id", "task_id", "thread_id", "sandbox_id")
_BEGIN_CALL: Final = (
    insert(ToolCallRun)
    .values({name: sa.bindparam(name) for name in _CALL_VALUES})
    .on_conflict_do_nothing()
    .returning(ToolCallRun.step_key)
)


async def begin_tool_call(
    session: AsyncSession, thread: Thread, step_key: str, sandbox_id: str
) -> tuple[str, str | None] | None:
    """Note that the call starts in this sandbox; of an earlier start, returns its sandbox and its noted effect."""
    inserted = await session.scalar(
        _BEGIN_CALL,
        {
            "step_key": step_key,
            "project_id": thread.project_id,
            "task_id": thread.task_id,
            "thread_id": thread.id,
            "sandbox_id": sandbox_id,
        },
    )
    if inserted is not None:
        return None
    earlier = await session.get_one(ToolCallRun, step_key)
    return earlier.sandbox_id, earlier.effect


async def move_tool_call(session: AsyncSession, step_key: str, sandbox_id: str) -> None:
    """A call whose start was noted starts in another sandbox, because that one was lost before."""
    await session.execute(sa.update(ToolCallRun).where(ToolCallRun.step_key == step_key).values(sandbox_id=sandbox_id))


async def begun_in(session: AsyncSession, step_key: str) -> str | None:
    """The sandbox in which the call was started; nothing when it was not."""
    return await session.scalar(sa.select(ToolCallRun.sandbox_id).where(ToolCallRun.step_key == step_key))


async def note_effect(session: AsyncSession, step_key: str, digest: str) -> None:
    """Note what the call is about to write, before it does."""
    await session.execute(sa.update(ToolCallRun).where(ToolCallRun.step_key == step_key).values(effect=digest))


async def note_sandbox(session: AsyncSession, thread_id: str, sandbox_id: str) -> None:
    """The agent now knows that it works in this sandbox."""
    await session.execute(sa.update(Thread).where(Thread.id == thread_id).values(sandbox_id=sandbox_id))
