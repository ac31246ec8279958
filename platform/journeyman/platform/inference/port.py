"""The port through which agents reach models.

Drivers: :class:`journeyman.platform.inference.client.OpenAIModelEngine`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from journeyman.platform.ledger.usage import TokenUsage

HEADER_PROJECT: Final = "X-Journeyman-Project"
HEADER_TASK: Final = "X-Journeyman-Task"
HEADER_THREAD: Final = "X-Journeyman-Thread"
HEADER_REQUEST: Final = "X-Journeyman-Request"
HEADER_ATTEMPT: Final = "X-Journeyman-Attempt"


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """For whom a call is made. ``request_id`` is the step key: equal for all attempts of a step; ``attempt`` is ≥ 1."""

    project_id: str
    request_id: str
    attempt: int = 1
    task_id: str | None = None
    thread_id: str | None = None

    def headers(self) -> dict[str, str]:
        headers = {
            HEADER_PROJECT: self.project_id,
            HEADER_REQUEST: self.request_id,
            HEADER_ATTEMPT: str(self.attempt),
        }
        if self.task_id is not None:
            headers[HEADER_TASK] = self.task_id
        if self.thread_id is not None:
            headers[HEADER_THREAD] = self.thread_id
        return headers


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One chat completion. ``messages`` and ``tools`` are in the OpenAI wire form and are sent as they are.

    ``messages`` may be the bytes of a JSON array, which go out unread: a long conversation costs no parsing.
    """

    model: str
    messages: Sequence[Mapping[str, Any]] | bytes
    identity: CallIdentity
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    idle_timeout_s: float = 600.0
    """Longest silence, before the first chunk or between two."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent besides those of ``identity``."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments`` is the model's raw text, which need not be valid JSON. ``id`` is unique within the answer.

    ``extra`` are the provider's own fields beside the function, for example a signature: they go back to it verbatim.
    """

    id: str
    name: str
    arguments: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer while it streams: for people to watch, never to be stored as the answer."""

    kind: Literal["text", "reasoning", "tool_call"]
    text: str
    index: int = 0
    """Position of the tool call in the answer."""
    name: str | None = None
    """Name of the tool, with the first delta of its call."""


OnDelta = Callable[[Delta], None]
"""Called for every delta, on the event loop; must neither block nor raise."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A whole answer. Never part of one: a stream that ends early is an error."""

    text: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    usage: TokenUsage | None
    """None when the engine reports no usage."""
    finish_reason: str
    """``stop``, ``tool_calls``, ``length``, ``content_filter`` …, in the engine's own words."""
    model: str
    """What the engine calls the model that answered."""
    request_id: str
    ttft_s: float
    """Seconds from sending the request to the first chunk with content."""
    duration_s: float


class ModelEngine(Protocol):
    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelAnswer:
        """Ask once. Never retries: that is the caller's business, which knows what a repeated call costs.

        Raises :class:`~journeyman.platform.inference.errors.ModelUnavailable`,
        :class:`~journeyman.platform.inference.errors.ModelRejected` or
        :class:`~journeyman.platform.kit.errors.BudgetExhausted`.
        When the awaiting task is cancelled, its connection is closed before the cancellation goes on. The call itself may
        go on for another attempt to join it; :meth:`cancel` ends it.
        """
        ...

    async def cancel(self, identity: CallIdentity) -> None:
        """Nobody wants the answer any more: end the step's call, if one runs. Best effort; raises nothing of its own."""
        ...

    async def close(self) -> None: ...
