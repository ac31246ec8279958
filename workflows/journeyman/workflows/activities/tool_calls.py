"""The tool calls that a model's answer asks for, and their results."""

from dataclasses import dataclass, field, replace
from typing import Any

from journeyman.agents import context
from journeyman.agents.arguments import EditFile, Shell
from journeyman.agents.tools import ParsedCall, ToolError, parse_call
from journeyman.platform.events.log import NewEvent
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.workflows.activities.loaded_step import LoadedStep
from journeyman.workflows.types import Step


@dataclass(frozen=True)
class CallDecision:
    """A person's decision on a tool call.

    ``run``: whether the call is executed. ``text``: what the agent reads before or instead of the result. ``edited``: the
    arguments with which it is executed instead, if the person changed them.
    """

    approval_id: str
    state: str
    run: bool
    text: str
    edited: dict[str, Any] | None

    @property
    def data(self) -> dict[str, Any]:
        """Facts for the result's event."""
        return {"approval": {"id": self.approval_id, "state": self.state, "edited": self.edited is not None}}


@dataclass(frozen=True)
class ToolCall:
    """One call of the step: its place, its step key, and its arguments as parsed."""

    index: int
    key: str
    id: str
    tool: str
    parsed: ParsedCall | ToolError
    decision: CallDecision | None = None

    @property
    def refused(self) -> bool:
        """Whether a person's decision forbids to execute it."""
        return self.decision is not None and not self.decision.run

    @property
    def runs_once(self) -> bool:
        """Whether its start is stored before it is executed, because it must not be executed twice."""
        if self.refused:
            return False
        return isinstance(self.parsed, ParsedCall) and isinstance(self.parsed.arguments, Shell | EditFile)

    @property
    def result_key(self) -> str:
        """The step key of its result."""
        return step_keys.result(self.key)

    @property
    def output_id(self) -> str:
        """The name of its output for the agent: unique in the thread, short, and the same at every attempt."""
        _, number, index = self.key.rsplit(":", 2)
        return f"out_{number}_{index}"

    def decided(self, role: str, decision: CallDecision) -> "ToolCall":
        """The call with a person's decision; parsed again if the person changed its arguments."""
        if decision.edited is None:
            return replace(self, decision=decision)
        parsed = parse_call(role, self.tool, decision.edited)
        if isinstance(parsed, ToolError):
            invalid = "[A person changed this call before approving it, but not into a valid one. Nothing was run.]"
            decision = replace(decision, text=invalid)
        return replace(self, decision=decision, parsed=parsed)


def parse_calls(loaded: LoadedStep) -> list[ToolCall]:
    """The calls that the stored answer asks for, in order; empty for an answer without any."""
    step, answer = loaded.step, loaded.answer
    assert answer is not None
    calls: list[ToolCall] = []
    for index, call in enumerate(answer.get("tool_calls") or ()):
        name = call["function"]["name"]
        written = context.written_arguments(call["function"]["arguments"])
        parsed = parse_call(step.thread.role, name, written)
        calls.append(ToolCall(index, step_keys.tool_call(step.key, index), call["id"], name, parsed))
    return calls


@dataclass(frozen=True)
class ToolResult:
    """The result of one tool call.

    ``text``: what the agent reads. ``data``: facts for the event. ``output``: bytes to be kept in full when the text shows only a
    part of them. ``limits``: limits of the sandbox that the call reached: ``memory``, ``time``, ``pids``, ``disk``.
    """

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    output: bytes | None = None
    ok: bool = True
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExecutedCall:
    """A call with its result. ``blob``: digest of its whole output, when the text shows only a part."""

    call: ToolCall
    result: ToolResult
    blob: str | None

    @property
    def handover(self) -> ParsedCall | None:
        """The call, if the role handed over with it."""
        parsed = self.call.parsed
        return parsed if isinstance(parsed, ParsedCall) and parsed.terminal and self.result.ok else None

    def events(self, step: Step) -> list[NewEvent]:
        """``agent.tool_result``, and ``sandbox.limit_hit`` for each limit."""
        call, result, thread = self.call, self.result, step.thread
        stored = NewEvent(
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
            step_key=call.result_key,
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
        return [stored, *hit]
