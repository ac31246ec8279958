"""The tool calls of one step while they are carried out: what each is, and what it came to."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from journeyman.agents import context, loops
from journeyman.agents.arguments import EditFile, Shell, SubmitReview
from journeyman.agents.roles import Role
from journeyman.agents.tools import ParsedCall, ToolError, parse_call
from journeyman.platform.events.log import NewEvent
from journeyman.platform.events.types import EventType
from journeyman.platform.sandboxes.errors import LOST_WHILE_RUNNING
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads.models import Thread
from journeyman.workflows.activities.approvals import Answer
from journeyman.workflows.activities.tool_runner import ToolResult
from journeyman.workflows.activities.workplace import Workplace
from journeyman.workflows.types import Step, StepOutcome

MAY_HAVE_RUN: Final = (
    f"Error: {LOST_WHILE_RUNNING}. It may have run in part; its effects are lost, and it was not "
    "started again. The files are those after your last completed step. Run it again if it is still needed."
)
NOT_BEGUN: Final = (
    f"Error: {LOST_WHILE_RUNNING} or before it could, and with it what the step's earlier calls did. It was not started. The "
    "files are those after your last completed step. Do the whole step again if it is still needed."
)


@dataclass(frozen=True)
class Call:
    """One call of the step, as the model wrote it and as it was understood."""

    index: int
    key: str
    id: str
    tool: str
    parsed: ParsedCall | ToolError
    answer: Answer | None = None
    """What a person decided about it, where that was asked for."""

    @property
    def begins(self) -> bool:
        """Whether its start is noted, because it must not happen twice."""
        if self.answer is not None and not self.answer.run:
            return False
        return isinstance(self.parsed, ParsedCall) and isinstance(self.parsed.arguments, Shell | EditFile)

    @property
    def output_id(self) -> str:
        """What the agent calls its output: unique in the thread, short, and the same at every attempt."""
        _, number, index = self.key.rsplit(":", 2)
        return f"out_{number}_{index}"


@dataclass(frozen=True)
class Done:
    """What a call came to. ``blob``: digest of its whole output, when the text shows only a part."""

    call: Call
    result: ToolResult
    blob: str | None

    @property
    def consequences(self) -> bool:
        """Whether storing it means more than a message and its events."""
        handed_over = isinstance(self.call.parsed, ParsedCall) and self.call.parsed.terminal and self.result.ok
        return handed_over or self.blob is not None

    def events(self, step: Step) -> list[NewEvent]:
        """What the log says of it."""
        call, result, thread = self.call, self.result, step.thread
        said = NewEvent(
            EventType.AGENT_TOOL_RESULT,
            {
                "call_id": call.key,
                "role": thread.role,
                "tool": call.tool,
                "ok": result.ok,
                "text": result.text,
                "output_id": None if self.blob is None else call.output_id,
                **result.data,
            },
            thread_id=thread.thread_id,
            subtask_id=thread.subtask_id,
            step_key=f"{call.key}:result",
        )
        hit = (
            NewEvent(
                EventType.SANDBOX_LIMIT_HIT,
                {"limit": limit, "call_id": call.key},
                thread_id=thread.thread_id,
                subtask_id=thread.subtask_id,
            )
            for limit in result.limits
        )
        return [said, *hit]


@dataclass
class Batch:
    """One step's calls while they run: where, whether a replaced sandbox was announced, and what they came to."""

    step: Step
    task: Task
    thread: Thread
    done: Mapping[str, dict[str, Any]]
    """Messages of the step that an earlier attempt has stored, by key."""
    lease_id: str | None = None
    begun: dict[str, tuple[str, str | None] | None] = field(default_factory=dict)
    """Calls whose start is noted: what is known of an earlier one, by key."""
    workplace: Workplace | None = None
    announced: bool = False
    answers: dict[str, Answer] = field(default_factory=dict)
    """People's decisions by the call's key."""
    observed: list[loops.Step] = field(default_factory=list)
    review: SubmitReview | None = None
    outcome: StepOutcome = field(default_factory=StepOutcome)
    carried_out: bool = False
    """An earlier attempt has carried out calls of the step, in the sandbox that the thread's row names."""
    lost: bool = False
    """The step's sandbox died under one of its calls: what the others did is gone too, and none is begun any more."""

    def read(self, answer: dict[str, Any]) -> list[Call]:
        """The calls that the model's answer asks for."""
        calls: list[Call] = []
        for index, call in enumerate(answer.get("tool_calls") or ()):
            name = call["function"]["name"]
            written = context.written_arguments(call["function"]["arguments"])
            parsed = parse_call(self.step.thread.role, name, written)
            calls.append(Call(index, f"{self.step.key}:{index}", call["id"], name, parsed))
        self.carried_out = any(isinstance(call.parsed, ParsedCall) and self.told(call) is not None for call in calls)
        self.lost = any((self.told(call) or "").endswith((MAY_HAVE_RUN, NOT_BEGUN)) for call in calls)
        return calls

    def told(self, call: Call) -> str | None:
        """The text of the call's result, when an earlier attempt has stored one."""
        stored = self.done.get(f"{call.key}:result")
        return None if stored is None else str(stored.get("content"))

    def is_lost_to(self, sandbox_id: str) -> bool:
        """Whether what the step did before is not in this sandbox, and in no snapshot yet."""
        self.lost = self.lost or (self.carried_out and self.thread.sandbox_id not in {None, sandbox_id})
        return self.lost

    def answered(self, call: Call) -> Call:
        """The call with what a person decided about it: with other arguments, if they changed it."""
        answer = self.answers.get(call.key)
        if answer is None or answer.edited is None:
            return replace(call, answer=answer)
        parsed = parse_call(self.step.thread.role, call.tool, answer.edited)
        return replace(call, answer=answer.about(parsed), parsed=parsed)

    @property
    def plan_revision(self) -> int:
        """The plan that is in force after the step."""
        planned = self.step.thread.role == Role.PLANNER and self.outcome.submitted
        return self.step.thread.revision if planned else self.task.plan_revision

    def note_submission(self, parsed: ParsedCall | ToolError) -> None:
        """Let the outcome tell of a call that hands over; of others, nothing follows."""
        if isinstance(parsed, ParsedCall) and parsed.terminal:
            self.outcome.submitted = True
            if isinstance(parsed.arguments, SubmitReview):
                self.review = parsed.arguments
