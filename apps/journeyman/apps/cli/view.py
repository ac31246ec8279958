"""What a watcher knows of a task: the state of things for a header, filled in by ``steps.fold``."""

from dataclasses import dataclass, field
from typing import Any, Final

from journeyman.apps.cli.suggestions import Suggestion, laid_out
from journeyman.apps.cli.text import moment, one_line

Json = dict[str, Any]

TERMINAL: Final = frozenset({"succeeded", "failed", "errored", "cancelled"})
PLATFORM: Final = "platform"
REPLAY_BANNER: Final = "replay engine: scripted answers, no model behind them"


@dataclass(frozen=True, slots=True)
class Line:
    """One step. ``status`` is ``ok``, ``bad``, ``warn`` or empty; ``detail`` are further lines, safe for a terminal."""

    seq: int
    time: str
    role: str
    text: str
    status: str = ""
    detail: tuple[str, ...] = ()
    subtask: str | None = None
    quiet: bool = False
    """The detail is there for who wants everything, and left out for who watches."""
    waits: str = ""
    """What the task waits for since this step."""
    how: tuple[Suggestion, ...] = ()
    """The commands that let it go on."""

    def advice(self, width: int | None = None) -> list[str]:
        """What the task waits for and how it goes on: shown whatever is left out of the detail. Of a line at most as wide."""
        return [*([self.waits] if self.waits else []), *laid_out(self.how, width)]


@dataclass
class Subtask:
    id: str
    title: str
    depends_on: list[str]
    state: str = "pending"
    rounds: int = 0


@dataclass
class Running:
    """A tool call or a model call whose end has not been told yet."""

    role: str
    text: str
    since: str


@dataclass
class TaskView:
    """One task so far. Times are as the API writes them."""

    task_id: str
    title: str = ""
    state: str = "queued"
    paused: str | None = None
    pause: Json = field(default_factory=dict)
    """What the pause is for, as ``paused_detail`` of a task."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Approvals that are pending: what each is about, by its id."""
    sandbox_wait: str | None = None
    """Why a sandbox waits for memory, while one does."""
    replay: bool = False
    started_at: str | None = None
    finished_at: str | None = None
    verified: bool | None = None
    failure: Json | None = None
    tokens: int = 0
    cost_usd: str | None = None
    plan_revision: int = 0
    subtasks: dict[str, Subtask] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    receipts: list[Json] = field(default_factory=list)
    last_seq: int = 0
    batches: dict[str, int] = field(default_factory=dict)
    """How many tool calls each step made."""
    _roles: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Json, *, replay: bool = False) -> "TaskView":
        return cls(
            task_id=task["id"],
            title=one_line(str(task.get("title") or ""), 100),
            state="queued",
            replay=replay,
            started_at=task.get("created_at"),
        )

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    def elapsed(self, now: float) -> float:
        """Seconds since the task was submitted, up to its end; ``now`` is Unix time."""
        begun, over = moment(self.started_at), moment(self.finished_at)
        if begun is None:
            return 0.0
        return max(0.0, (over.timestamp() if over else now) - begun.timestamp())

    def role_of(self, event: Json, data: Json) -> str:
        thread = event.get("thread_id")
        if isinstance(data.get("role"), str):
            role = one_line(data["role"], 20)
            if thread:
                self._roles[thread] = role
            return role
        return self._roles.get(str(thread), PLATFORM) if thread else PLATFORM

    def subtask_title(self, subtask_id: Any) -> str:
        found = self.subtasks.get(str(subtask_id))
        return found.title if found else one_line(str(subtask_id), 60)
