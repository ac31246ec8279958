"""The blackboard of a task: what its roles tell one another, beside the plan."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.board import repository
from journeyman.platform.board.models import Kind, Note
from journeyman.platform.board.repository import NoteQuery, Posted
from journeyman.platform.board.schemas import BoardFilter
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.http.pagination import (
    Position,
    decode_cursor,
    page_of,
    seq_in,
)
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.text import cleaned
from journeyman.platform.plans import queries as plans
from journeyman.platform.plans.models import Plan, Subtask
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.repository import lock_task

MOST_NOTES: Final = 1000
"""In one task: a role that writes without end fills no database and no prompt."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes. The same ``step_key`` writes once."""

    task_id: str
    role: str
    step_key: str
    thread_id: str | None = None
    subtask_id: str | None = None


@dataclass(frozen=True, slots=True)
class PlanState:
    """The newest plan and how far its subtasks are, in the plan's order."""

    plan: Plan
    subtasks: list[Subtask]


@dataclass(frozen=True, slots=True)
class BoardPage:
    """``plan``: None before there is one. ``cursor``: of the next page, None on the last."""

    plan: PlanState | None
    notes: list[Posted]
    cursor: str | None


async def post(session: AsyncSession, author: Author, kind: Kind, text: str, closes: int | None = None) -> Note:
    """Put a note on the board, with the event that tells of it; once per step key.

    Raises :class:`InvalidInput` when ``closes`` is no open promise, and when the board is full.
    """
    task = await lock_task(session, author.task_id)
    earlier = await repository.of_step(session, author.step_key)
    if earlier is not None:
        return earlier
    if closes is not None:
        await _check_promise(session, author.task_id, closes)
    seq = await repository.next_seq(session, author.task_id)
    if seq > MOST_NOTES:
        raise InvalidInput(
            f"The board is full: it has {MOST_NOTES} notes. Nothing was written; put what matters into your hand-over.",
            code="board_full",
        )
    text = cleaned(text)
    event = await append(
        session,
        author.task_id,
        EventType.NOTE_WRITTEN,
        {"number": seq, "kind": kind, "text": text, "closes": closes, "role": author.role},
        thread_id=author.thread_id,
        subtask_id=author.subtask_id,
        step_key=step_keys.part(author.step_key, "note"),
    )
    note = Note(
        id=derived_id("note", author.step_key),
        project_id=task.project_id,
        task_id=author.task_id,
        seq=seq,
        kind=kind,
        text=text,
        closes=closes,
        role=author.role,
        thread_id=author.thread_id,
        subtask_id=author.subtask_id,
        event_seq=event.seq,
        epoch=task.epoch,
        step_key=author.step_key,
        created_at=now(),
    )
    await repository.add(session, note)
    return note


async def _check_promise(session: AsyncSession, task_id: str, number: int) -> None:
    promise = await repository.one(session, task_id, number)
    if promise is None:
        raise InvalidInput(f"There is no note {number} on the board; nothing was written.", code="no_such_note")
    if promise.note.kind != "promise":
        raise InvalidInput(
            f"Note {number} is a {promise.note.kind}; only a promise can be closed. Nothing was written.",
            code="no_promise",
        )
    if promise.closed_by is not None:
        raise InvalidInput(
            f"The promise {number} was closed by note {promise.closed_by} already; nothing was written.",
            code="promise_closed",
        )


async def notes(
    session: AsyncSession, task_id: str, *, kind: Kind | None = None, after: int | None = None
) -> list[Posted]:
    """What is on the board, oldest first."""
    return await repository.find(session, task_id, NoteQuery(kinds=[kind] if kind else [], after=after))


async def plan_state(session: AsyncSession, task_id: str, revision: int) -> PlanState | None:
    """The plan of that revision with its progress; None before there is one."""
    plan = await plans.of_revision(session, task_id, revision)
    if plan is None:
        return None
    progress = await plans.progress(session, task_id, revision)
    return PlanState(plan, list(progress.values()))


async def page(session: AsyncSession, project_id: str, task_id: str, wanted: BoardFilter) -> BoardPage:
    """The plan's state and one page of notes, newest first. Raises :class:`NotFound`, also for another project's task."""
    task = await tasks.read(session, project_id, task_id)
    position = decode_cursor(wanted.cursor)
    found = await repository.find(
        session,
        task_id,
        NoteQuery(
            kinds=wanted.kind,
            only_open=wanted.open,
            before=None if position is None else seq_in(position),
            descending=True,
            limit=wanted.limit + 1,
        ),
    )
    shown, cursor = page_of(found, wanted.limit, lambda row: Position(row.note.created_at, str(row.note.seq)))
    return BoardPage(await plan_state(session, task_id, task.plan_revision), shown, cursor)
