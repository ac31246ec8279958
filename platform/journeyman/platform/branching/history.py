"""What had happened to a task at a point of its event log, as far as that decides how it goes on from there.

The log tells of every branch, one after the other; only what led to the point counts. Each ``task.rewound`` and
``task.forked`` holds the whole history of the branch that begins with it, so that nothing before it has to be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel

from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Json

BRANCHES: Final = frozenset({EventType.TASK_REWOUND, EventType.TASK_FORKED})
PLANS: Final = frozenset({EventType.PLAN_PROPOSED, EventType.PLAN_REVISED, EventType.PLAN_EDITED})
_MESSAGES: Final[dict[str, "MessageState"]] = {
    EventType.MESSAGE_RECEIVED: "received",
    EventType.MESSAGE_DELIVERED: "delivered",
    EventType.MESSAGE_ACTED_ON: "acted_on",
}
TOLD: Final = frozenset(
    {
        *BRANCHES,
        *PLANS,
        *_MESSAGES,
        EventType.SUBTASK_STARTED,
        EventType.SUBTASK_COMPLETED,
        EventType.SUBTASK_FAILED,
        EventType.ACCEPTANCE_FAILED,
        EventType.NOTE_WRITTEN,
    }
)
"""The types of events that a history is made from."""

MessageState = Literal["received", "delivered", "acted_on"]


@dataclass(frozen=True, slots=True)
class Told:
    """An event as far as a history needs it."""

    type: str
    subtask_id: str | None
    data: Json


class PastSubtask(BaseModel):
    """A subtask that was begun."""

    revision: int
    id: str
    state: Literal["running", "completed", "failed"] = "running"
    rounds: int = 0
    snapshot: str | None = None


class History(BaseModel):
    """What is in force at a point."""

    revisions: list[int] = []
    """Plans submitted on the way, the oldest first; the numbers between them belong to other branches."""
    plans: int = 1
    """Plans tried, as ``TaskProgress`` counts them."""
    given_up: bool = False
    """Whether the plan in force has failed and the next one is due."""
    subtasks: list[PastSubtask] = []
    messages: dict[int, MessageState] = {}
    """What people said, by number."""
    notes: list[int] = []
    """Numbers of the notes on the board."""

    def subtask(self, revision: int, subtask_id: str) -> PastSubtask | None:
        return next((each for each in self.subtasks if (each.revision, each.id) == (revision, subtask_id)), None)


def fold(events: Iterable[Told]) -> History:
    """The history that these events lead to; in the order of the log, of all branches."""
    history = History()
    for event in events:
        if event.type in BRANCHES:
            history = History.model_validate(event.data["history"])
        else:
            _add(history, event)
    return history


def _add(history: History, event: Told) -> None:
    match event.type:
        case EventType.PLAN_PROPOSED | EventType.PLAN_REVISED | EventType.PLAN_EDITED:
            revision = int(event.data["revision"])
            if revision not in history.revisions:
                history.revisions.append(revision)
            if history.given_up:
                history.plans += 1
                history.given_up = False
        case EventType.SUBTASK_STARTED:
            begun = PastSubtask(revision=int(event.data["plan_revision"]), id=str(event.subtask_id))
            history.subtasks = [
                each for each in history.subtasks if (each.revision, each.id) != (begun.revision, begun.id)
            ]
            history.subtasks.append(begun)
        case EventType.SUBTASK_COMPLETED | EventType.SUBTASK_FAILED:
            _end(history, event)
        case EventType.ACCEPTANCE_FAILED:
            history.given_up = True
        case EventType.NOTE_WRITTEN:
            history.notes.append(int(event.data["number"]))
        case EventType.MESSAGE_RECEIVED | EventType.MESSAGE_DELIVERED | EventType.MESSAGE_ACTED_ON:
            _hear(history, int(event.data["message_number"]), _MESSAGES[event.type])


def _end(history: History, event: Told) -> None:
    # The event does not name the revision: of two subtasks with the same id, the one begun last is meant.
    begun = next((each for each in reversed(history.subtasks) if each.id == event.subtask_id), None)
    if begun is None:
        return
    failed = event.type == EventType.SUBTASK_FAILED
    begun.state = "failed" if failed else "completed"
    begun.rounds = int(event.data.get("rounds") or 0)
    begun.snapshot = event.data.get("snapshot")
    history.given_up = history.given_up or failed


def _hear(history: History, number: int, state: MessageState) -> None:
    # It is delivered to one agent after the other: what the first has done with it counts.
    if history.messages.get(number) != "acted_on":
        history.messages[number] = state
