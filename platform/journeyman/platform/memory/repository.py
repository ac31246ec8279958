"""Memories in PostgreSQL, always within one project."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.memory.models import Memory, MemoryChange
from journeyman.platform.tasks.models import Task
from journeyman.platform.tenancy.models import Project

CHANNEL: Final = "journeyman_memories"
"""PostgreSQL notification channel: the index is behind the rows."""

_WORD: Final = re.compile(r"\w{3,}")
_MOST_WORDS: Final = 64
_VERIFICATION: Final = (
    EventType.PLAN_PROPOSED,
    EventType.PLAN_EDITED,
    EventType.PLAN_REVISED,
    EventType.ACCEPTANCE_PASSED,
    EventType.ACCEPTANCE_FAILED,
)
LIVE: Final = sa.and_(Memory.deleted_at.is_(None), Memory.superseded_by.is_(None))


@dataclass(frozen=True, slots=True)
class MemoryQuery:
    """Which memories, newest first; ``before`` is the last row of the page before this."""

    state: str = "live"
    """``live``, ``superseded``, ``deleted`` or ``all``."""
    kinds: Sequence[str] = ()
    origins: Sequence[str] = ()
    task_id: str | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 20


async def get(session: AsyncSession, project_id: str, memory_id: str) -> Memory | None:
    return await session.scalar(sa.select(Memory).where(Memory.id == memory_id, Memory.project_id == project_id))


async def lock(session: AsyncSession, project_id: str, ids: Collection[str]) -> dict[str, Memory]:
    """Those of the project with these ids, locked until the transaction ends and as they are now."""
    rows = await session.scalars(
        sa.select(Memory)
        .where(Memory.project_id == project_id, Memory.id.in_(ids))
        .order_by(Memory.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    return {row.id: row for row in rows}


async def find(session: AsyncSession, project_id: str, query: MemoryQuery) -> Sequence[Memory]:
    """At most ``limit`` memories."""
    statement = (
        sa.select(Memory)
        .where(Memory.project_id == project_id)
        .order_by(Memory.created_at.desc(), Memory.id.desc())
        .limit(query.limit)
    )
    match query.state:
        case "live":
            statement = statement.where(LIVE)
        case "superseded":
            statement = statement.where(Memory.superseded_by.is_not(None), Memory.deleted_at.is_(None))
        case "deleted":
            statement = statement.where(Memory.deleted_at.is_not(None))
    if query.kinds:
        statement = statement.where(Memory.kind.in_(query.kinds))
    if query.origins:
        statement = statement.where(Memory.origin.in_(query.origins))
    if query.task_id is not None:
        statement = statement.where(Memory.task_id == query.task_id)
    if query.before is not None:
        statement = statement.where(sa.tuple_(Memory.created_at, Memory.id) < sa.tuple_(*query.before))
    return (await session.scalars(statement)).all()


class MemoryUse(NamedTuple):
    """What a task may do with the project's memory."""

    read: bool
    write: bool


async def memory_use(session: AsyncSession, task: Task) -> MemoryUse:
    """What both the task and its project allow."""
    project = await session.scalar(sa.select(Project.memory).where(Project.id == task.project_id)) or {}
    return MemoryUse(*(bool(task.memory.get(name, True) and project.get(name, True)) for name in MemoryUse._fields))


async def project_use(session: AsyncSession, project_id: str) -> MemoryUse:
    """What the project allows."""
    allowed = await session.scalar(sa.select(Project.memory).where(Project.id == project_id)) or {}
    return MemoryUse(*(bool(allowed.get(name, True)) for name in MemoryUse._fields))


async def set_project_use(session: AsyncSession, project_id: str, changes: Json) -> None:
    """Change what the project allows; what ``changes`` does not name stays."""
    await session.execute(
        sa.update(Project)
        .where(Project.id == project_id)
        .values(memory=Project.memory.op("||")(sa.cast(changes, JSONB)))
    )


class VerificationRecord(NamedTuple):
    """What is known of a task's verification: its acceptance commands, and whether one ever failed."""

    commands: frozenset[str]
    failed: bool


async def verification_of(session: AsyncSession, task: Task) -> VerificationRecord:
    """Of the task and of those that it was forked from, of every plan, also those that a rewind went back to before."""
    parent: sa.ColumnElement[str] = Task.forked_from["task_id"].astext
    line = (
        sa.select(Task.id, Task.acceptance, parent.label("parent"))
        .where(Task.id == task.id)
        .cte("line", recursive=True)
    )
    line = line.union(sa.select(Task.id, Task.acceptance, parent).where(Task.id == line.c.parent))
    commands: set[str] = set()
    for acceptance in await session.scalars(sa.select(line.c.acceptance)):
        commands.update(acceptance)
    events = await session.execute(
        sa.select(Event.type, Event.data["acceptance"], Event.data["command"].astext).where(
            Event.task_id.in_(sa.select(line.c.id)), Event.type.in_(_VERIFICATION)
        )
    )
    failed = False
    for type_, planned, command in events:
        commands.update(planned or [])
        if command is not None:
            commands.add(command)
        failed = failed or type_ == EventType.ACCEPTANCE_FAILED
    return VerificationRecord(frozenset(commands), failed)


async def search_text(
    session: AsyncSession, project_id: str, query: str, kinds: Collection[str], *, limit: int
) -> list[tuple[Memory, str | None, float]]:
    """Live memories with any of the query's words, the best first: each with its task's state and a score from 0 to 1."""
    words = " OR ".join(_WORD.findall(query)[:_MOST_WORDS])
    # Written out, not as parameters: only then the index of the same expression is used.
    english: sa.ColumnElement[str] = sa.literal_column("'english'::regconfig")
    asked = sa.func.websearch_to_tsquery(english, words)
    text = sa.func.to_tsvector(english, Memory.text)
    score = sa.func.ts_rank(text, asked, 32)
    statement = (
        sa.select(Memory, Task.state, score)
        .outerjoin(Task, Task.id == Memory.task_id)
        .where(Memory.project_id == project_id, LIVE, text.op("@@")(asked))
        .order_by(score.desc(), Memory.id)
        .limit(limit)
    )
    if kinds:
        statement = statement.where(Memory.kind.in_(kinds))
    return [(memory, state, float(rank)) for memory, state, rank in await session.execute(statement)]


class Stored(NamedTuple):
    """``new``: the row was made now; otherwise the live one with the same text was confirmed."""

    id: str
    confirmations: int
    new: bool


async def lock_text(session: AsyncSession, project_id: str, digest: str) -> None:
    """Wait for whoever writes the same text, until the transaction ends."""
    await session.execute(
        sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"{project_id}/{digest}", 0)))
    )


async def add_or_confirm(session: AsyncSession, memory: dict[str, Any]) -> Stored:
    """Store a memory, or count one more confirmation of the live one that says the same. Of several at once, one is stored."""
    moment = now()
    row = (
        await session.execute(
            insert(Memory)
            .values(
                revision=1,
                index_due_at=moment,
                confirmations=0,
                uses=0,
                created_at=moment,
                updated_at=moment,
                **memory,
            )
            .on_conflict_do_update(
                index_elements=["project_id", "digest"],
                index_where=LIVE,
                set_={"confirmations": Memory.confirmations + 1, "updated_at": moment},
            )
            .returning(Memory.id, Memory.confirmations)
        )
    ).one()
    return Stored(row.id, row.confirmations, new=row.id == memory["id"])


async def note_source(session: AsyncSession, memory_id: str, event_id: str) -> None:
    """Note the event that tells of its writing."""
    await session.execute(sa.update(Memory).where(Memory.id == memory_id).values(source_event_id=event_id))


async def head_of_superseded(session: AsyncSession, project_id: str, digest: str) -> Memory | None:
    """The memory that counts in the place of superseded ones with that text, locked; the newest of several."""
    chain = (
        sa.select(Memory.id, Memory.superseded_by)
        .where(
            Memory.project_id == project_id,
            Memory.digest == digest,
            Memory.superseded_by.is_not(None),
            Memory.deleted_at.is_(None),
        )
        .cte("chain", recursive=True)
    )
    chain = chain.union(sa.select(Memory.id, Memory.superseded_by).where(Memory.id == chain.c.superseded_by))
    return await session.scalar(
        sa.select(Memory)
        .where(Memory.id.in_(sa.select(chain.c.id)), LIVE)
        .order_by(Memory.created_at.desc())
        .limit(1)
        .with_for_update()
        .execution_options(populate_existing=True)
    )


def confirm(memory: Memory) -> None:
    """Count that it was said again."""
    memory.confirmations += 1
    memory.updated_at = now()


async def event_data(session: AsyncSession, step_key: str) -> Json | None:
    """What the event of that step says, if it was written."""
    return await session.scalar(sa.select(Event.data).where(Event.step_key == step_key))


async def same_text(session: AsyncSession, project_id: str, digest: str) -> Memory | None:
    """The live memory with that text."""
    return await session.scalar(sa.select(Memory).where(Memory.project_id == project_id, Memory.digest == digest, LIVE))


def touch(memory: Memory) -> None:
    """Have the index follow a change."""
    memory.revision += 1
    memory.index_due_at = now()


async def notify(session: AsyncSession, project_id: str) -> None:
    """Have the index look soon, once this transaction is committed."""
    await session.execute(sa.select(sa.func.pg_notify(CHANNEL, project_id)))


async def note_change(
    session: AsyncSession,
    memory: Memory,
    action: str,
    *,
    api_key_id: str | None = None,
    event_id: str | None = None,
    other_id: str | None = None,
) -> None:
    """Put what is about to change into the memory's history."""
    session.add(
        MemoryChange(
            project_id=memory.project_id,
            memory_id=memory.id,
            action=action,
            api_key_id=api_key_id,
            event_id=event_id,
            kind=memory.kind,
            text=memory.text,
            other_id=other_id,
            created_at=now(),
        )
    )
    await session.flush()


async def history(session: AsyncSession, memory_id: str) -> Sequence[MemoryChange]:
    """Oldest first."""
    rows = await session.scalars(
        sa.select(MemoryChange).where(MemoryChange.memory_id == memory_id).order_by(MemoryChange.id)
    )
    return rows.all()


async def superseded_by(session: AsyncSession, memory_ids: Collection[str], *, lock: bool = False) -> list[Memory]:
    """What these replaced, newest first."""
    statement = (
        sa.select(Memory).where(Memory.superseded_by.in_(memory_ids), Memory.deleted_at.is_(None)).order_by(Memory.id)
    )
    if lock:
        statement = statement.with_for_update().execution_options(populate_existing=True)
    rows = await session.scalars(statement)
    return sorted(rows, key=lambda memory: memory.created_at, reverse=True)


async def written_by(session: AsyncSession, project_id: str, task_id: str) -> list[Memory]:
    """What the task wrote and nobody deleted, locked."""
    rows = await session.scalars(
        sa.select(Memory)
        .where(Memory.project_id == project_id, Memory.task_id == task_id, Memory.deleted_at.is_(None))
        .order_by(Memory.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    return list(rows)


class Source(NamedTuple):
    """Where a memory comes from. ``event`` is missing for one whose event was never written."""

    task: Task
    event: Event | None


async def source(session: AsyncSession, memory: Memory) -> Source | None:
    """None for what a person added."""
    task = await session.get(Task, memory.task_id) if memory.task_id is not None else None
    if task is None:
        return None
    event = await session.scalar(sa.select(Event).where(Event.id == memory.source_event_id))
    return Source(task, event)


class Row(NamedTuple):
    """A memory and how its task stands."""

    memory: Memory
    task_state: str | None
    """Of the task that wrote it."""


async def rows_of(session: AsyncSession, project_id: str, ids: Collection[str]) -> dict[str, Row]:
    """The project's memories with these ids, whether they count or not."""
    statement = (
        sa.select(Memory, Task.state)
        .outerjoin(Task, Task.id == Memory.task_id)
        .where(Memory.project_id == project_id, Memory.id.in_(ids))
    )
    return {row[0].id: Row(*row) for row in await session.execute(statement)}


async def count_uses(session: AsyncSession, ids: Collection[str]) -> None:
    """Count one use of each; one that somebody else changes right now is left out, rather than waited for."""
    free = sa.select(Memory.id).where(Memory.id.in_(ids)).with_for_update(skip_locked=True)
    await session.execute(
        sa.update(Memory)
        .where(Memory.id.in_(free.scalar_subquery()))
        .values(uses=Memory.uses + 1, last_used_at=now())
        .execution_options(synchronize_session=False)
    )
