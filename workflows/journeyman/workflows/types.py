"""What passes between workflows and activities: references, counters and flags, never transcripts."""

from typing import Any, Literal

from pydantic import BaseModel

from journeyman.platform.kit.names import Queue
from journeyman.platform.tasks.contract import SubtaskProgress


class TaskRef(BaseModel):
    """``epoch``: how often the task was rewound; threads and subtask workflows of each epoch are their own.

    ``sandbox_queue``: polled by workers of every node with sandboxes, for work whose sandbox is on no node yet.
    """

    task_id: str
    project_id: str
    epoch: int = 0
    sandbox_queue: str = Queue.SANDBOXES


class ChangeState(BaseModel):
    """A move to a state that does not end the task. ``occasion``: names it among the moves to the same state."""

    task: TaskRef
    state: str
    occasion: str | None = None


class FinishTask(BaseModel):
    """The end of a task. ``state`` is one of the terminal states."""

    task: TaskRef
    state: str
    failure_code: str | None = None
    failure_message: str | None = None
    retryable: bool = False
    verified: bool = False


class TaskClosing(BaseModel):
    """``state``: how the task ended. Without one it goes on, because of what a person asked for before the end was written:
    ``rewind_id`` names a rewind; ``unread``: there are messages that no agent has read.
    """

    state: str | None = None
    rewind_id: str | None = None
    unread: bool = False


class ApplyRewind(BaseModel):
    task: TaskRef
    rewind_id: str


class Prepared(BaseModel):
    """``problem`` is what the environment check found, when it found something."""

    problem: str | None = None


class OpenThread(BaseModel):
    """Begin a conversation. ``round`` is 1 except for Reviewers; ``reason``: why a plan before this one was given up."""

    task: TaskRef
    role: str
    revision: int
    round: int = 1
    subtask_id: str | None = None
    reason: str | None = None


class ThreadRef(BaseModel):
    task: TaskRef
    thread_id: str
    role: str
    revision: int
    subtask_id: str | None = None


class Step(BaseModel):
    """One turn of a thread: a model call and the tool calls that it asks for. ``tries``: earlier tries by the workflow."""

    thread: ThreadRef
    number: int
    tries: int = 0
    interrupted: bool = False
    """A person's message interrupted the step: no model call and no further tool call is begun."""
    new_tokens: int = 0
    """Tokens of the model call (uncached prompt and completion), for the circuit breaker; 0 if unknown."""

    @property
    def key(self) -> str:
        """The step key: the same for every run and attempt."""
        return f"{self.thread.thread_id}:{self.number}"


class StepOutcome(BaseModel):
    """What a step came to.

    ``submitted``: the role handed over. ``next`` and ``reason``: what follows from a Reviewer's verdict, as
    ``journeyman.agents.review.Next``. ``idle``: the answer called no tool. ``tripped``: the circuit breaker's reason to stop.
    """

    submitted: bool = False
    idle: bool = False
    next: str | None = None
    reason: str | None = None
    snapshot: str | None = None
    tripped: str | None = None
    unapproved: bool = False
    """A plan was handed over, and the task's policy asks for a person's approval of it."""
    waiting: list[str] = []
    """Ids of pending approvals; no tool call of the step was executed yet."""
    unanswered: bool = False
    """The step was interrupted before the model's answer was stored: the step is to be tried again."""
    new_tokens: int = 0
    """As in ``Step``, for the next activity of a step that waits."""
    node: str | None = None
    """The node of the thread's sandbox; None without one, and where one queue serves all sandboxes."""


class TaskApprovals(BaseModel):
    """Approvals of one task, by id."""

    task: TaskRef
    approvals: list[str]


class PendingApprovals(BaseModel):
    """``pending``: ids. ``recheck_after_s``: seconds until the next of them is escalated or expires."""

    pending: list[str]
    recheck_after_s: float = 0.0


class RequestPlanApproval(BaseModel):
    task: TaskRef
    revision: int


class PlanVerdict(BaseModel):
    """How the approval of a plan ended.

    ``revision``: the plan that it was about in the end, which may be another one than was proposed. ``last_revision``: the
    highest number that is taken. ``reason``: for the next Planner, of a plan that was not approved.
    """

    state: Literal["approved", "rejected", "expired", "withdrawn"]
    revision: int
    last_revision: int
    reason: str | None = None


class PlanGraph(BaseModel):
    """The plan as far as the workflow needs it: ids and what each waits for, in plan order.

    ``unapproved``: the task's policy asks for a person's approval, which this plan does not have yet.
    """

    revision: int
    unapproved: bool = False
    subtasks: list["PlanNode"]


class PlanNode(BaseModel):
    id: str
    depends_on: list[str]


class RunSubtask(BaseModel):
    """Input of ``SubtaskWorkflow``."""

    task: TaskRef
    revision: int
    subtask_id: str
    progress: SubtaskProgress = SubtaskProgress()


class LoadPlan(BaseModel):
    task: TaskRef
    revision: int


class SubtaskResult(BaseModel):
    """``problem`` says why an unfinished subtask was given up."""

    subtask_id: str
    completed: bool
    problem: str | None = None


class DeliverFindings(BaseModel):
    """A review that goes back into the Coder's thread (``thread``) as it is."""

    thread: ThreadRef
    reviewer_thread_id: str
    round: int


class EndSubtask(BaseModel):
    """Approved work that is to be merged, or (``completed`` false) a subtask that was given up. ``coder``: its thread."""

    task: TaskRef
    revision: int
    subtask_id: str
    coder: str
    round: int
    completed: bool
    problem: str | None = None


class Integration(BaseModel):
    """``conflict``: the work could not be merged; the Coder's workspace holds both, and its thread says what to resolve."""

    conflict: bool = False


class Verify(BaseModel):
    task: TaskRef
    revision: int
    attempt: int


class Verification(BaseModel):
    """``problem`` is the report on the commands that failed; ``verified``: the user gave commands, and all passed."""

    passed: bool
    verified: bool
    problem: str | None = None


class Pause(BaseModel):
    """A pause that begins inside a workflow. ``id``: unique among the task's pauses."""

    id: str
    task: TaskRef
    reason: str
    detail: str | None = None
    facts: dict[str, Any] = {}
    """Of a budget: level, limit, spent, requested, of, period, since."""

    @property
    def step_key(self) -> str:
        """The step key of the pause's event."""
        return f"{self.task.task_id}:pause:{self.id}"
