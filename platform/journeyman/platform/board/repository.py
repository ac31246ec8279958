"""Notes in PostgreSQL. A note that a rewind went back to before stays stored, and is on the board no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from journeyman.platform.board.models import Note

_CLOSING: Final = aliased(Note, name="closing")


class Posted(NamedTuple):
    """A note as it is on the board. ``closed_by``: number of the note that closes it."""

    note: Note
    closed_by: int | None

    @property
    def open(self) -> bool:
        """Whether it is a promise that nobody has closed."""
        return self.note.kind == "promise" and self.closed_by is None


@dataclass(frozen=True, slots=True)
class NoteQuery:
    """Which notes of a task. In ascending order from ``after`` on, or descending from ``before``."""

    kinds: Sequence[str] = ()
    only_open: bool = False
    after: int | None = None
    before: int | None = None
    descending: bool = False
    limit: int | None = None


async def of_step(session: AsyncSession, step_key: str) -> Note | None:
    """What the step has written already."""
    return await session.scalar(sa.select(Note).where(Note.step_key == step_key))


async def next_seq(session: AsyncSession, task_id: str) -> int:
    """The next number; whoever asks holds the task's lock."""
    last = await session.scalar(sa.select(sa.func.max(Note.seq)).where(Note.task_id == task_id))
    return (last or 0) + 1


async def add(session: AsyncSession, note: Note) -> None:
    session.add(note)
    await session.flush()


async def find(session: AsyncSession, task_id: str, query: NoteQuery) -> list[Posted]:
    """What is on the board and fits, oldest first unless ``descending``."""
    closed_by = (
        sa.select(sa.func.min(_CLOSING.seq))
        .where(_CLOSING.task_id == Note.task_id, _CLOSING.closes == Note.seq, _CLOSING.set_aside_at.is_(None))
        .scalar_subquery()
    )
    statement = (
        sa.select(Note, closed_by)
        .where(Note.task_id == task_id, Note.set_aside_at.is_(None))
        .order_by(Note.seq.desc() if query.descending else Note.seq)
    )
    if query.kinds:
        statement = statement.where(Note.kind.in_(query.kinds))
    if query.only_open:
        statement = statement.where(Note.kind == "promise", closed_by.is_(None))
    if query.after is not None:
        statement = statement.where(Note.seq > query.after)
    if query.before is not None:
        statement = statement.where(Note.seq < query.before)
    if query.limit is not None:
        statement = statement.limit(query.limit)
    return [Posted(*row) for row in await session.execute(statement)]


async def one(session: AsyncSession, task_id: str, seq: int) -> Posted | None:
    """The note with that number, if it is on the board."""
    found = await find(session, task_id, NoteQuery(after=seq - 1, before=seq + 1))
    return found[0] if found else None
