"""The blackboard as agents read it: the plan's state, and the notes that the roles of a task leave one another."""

from dataclasses import dataclass
from typing import Final

from journeyman.agents.output import cut_text

OPENING_LIMIT: Final = 8 * 1024
"""Bytes of the board in the first message of a thread."""
READ_LIMIT: Final = 24 * 1024
"""Bytes of one answer of ``read_notes``."""
NOTE_LIMIT: Final = 1200
"""Bytes of one note in the first message of a thread; ``read_notes`` gives all of it."""


@dataclass(frozen=True, slots=True)
class BoardNote:
    """``closes``: number of the promise that this note closes; ``closed_by``: of the note that closes this promise."""

    number: int
    kind: str
    text: str
    role: str
    subtask_id: str | None = None
    closes: int | None = None
    closed_by: int | None = None

    @property
    def open(self) -> bool:
        return self.kind == "promise" and self.closed_by is None


@dataclass(frozen=True, slots=True)
class PlannedSubtask:
    """``state``: pending, running, completed or failed."""

    id: str
    title: str
    state: str


@dataclass(frozen=True, slots=True)
class Board:
    """``notes`` in the order of their numbers."""

    revision: int = 0
    plan: tuple[PlannedSubtask, ...] = ()
    notes: tuple[BoardNote, ...] = ()


def opening_text(board: Board, limit: int = OPENING_LIMIT) -> str:
    """The board for the first message of a thread, in at most about ``limit`` bytes; empty when there is nothing on it.

    The same board gives the same text. First the plan, then open promises, decisions, findings and the rest, each the
    newest first: what binds others comes before what informs them. What finds no room is counted, and found by
    ``read_notes``.
    """
    parts = [plan_text(board)] if board.plan else []
    # A plan of very many subtasks leaves the notes half of the room all the same.
    room = max(limit // 2, limit - sum(len(part.encode()) for part in parts))
    lines: list[str] = []
    left_out = 0
    for note in sorted(board.notes, key=_importance):
        line = note_line(note, NOTE_LIMIT)
        size = len(line.encode()) + 1
        if size > room or (note.kind == "promise" and not note.open):
            left_out += 1
        else:
            room -= size
            lines.append(line)
    if left_out:
        lines.append(f"- {_count(left_out, 'more note')}: `read_notes` shows all.")
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _importance(note: BoardNote) -> tuple[int, int]:
    if note.open:
        return 0, -note.number
    return {"decision": 1, "finding": 2}.get(note.kind, 3), -note.number


def plan_text(board: Board) -> str:
    """The plan's subtasks and how far each is."""
    subtasks = "\n".join(f"- {subtask.id} ({cut_text(subtask.title, 100)}): {subtask.state}" for subtask in board.plan)
    return f"Plan, revision {board.revision}:\n{subtasks}"


def read_text(board: Board, limit: int = READ_LIMIT) -> str:
    """The answer of ``read_notes``: the plan when it is given, then the notes in order, as many as fit."""
    parts = [plan_text(board)] if board.plan else []
    lines: list[str] = []
    room = limit
    for position, note in enumerate(board.notes):
        line = note_line(note, limit)
        room -= len(line.encode()) + 1
        if room < 0 and lines:
            last = board.notes[position - 1].number
            lines.append(f"[{_count(len(board.notes) - position, 'more note')}: read_notes with after={last}]")
            break
        lines.append(line)
    parts.append("\n".join(lines) if lines else "No notes.")
    return "\n\n".join(parts)


def note_line(note: BoardNote, limit: int) -> str:
    """For example ``- [4] promise by coder (s1), open: …``."""
    where = f" ({note.subtask_id})" if note.subtask_id else ""
    state = ", open" if note.open else ""
    if note.closed_by is not None:
        state = f", closed by {note.closed_by}"
    closes = f", closes {note.closes}" if note.closes is not None else ""
    # Indented, so that no line of a note looks like one of the message that it is put into.
    text = cut_text(note.text, limit).replace("\n", "\n  ")
    return f"- [{note.number}] {note.kind} by {note.role}{where}{state}{closes}: {text}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
