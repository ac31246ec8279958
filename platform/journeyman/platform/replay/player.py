"""Chooses the scripted answer for a request and cuts it into the chunks of a chat completion."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from journeyman.platform.kit.errors import InvalidInput, JourneymanError, NotFound, Unavailable
from journeyman.platform.replay.catalog import ReplayCatalog
from journeyman.platform.replay.conversation import Conversation, estimated_usage
from journeyman.platform.replay.script import (
    Fault,
    Script,
    ScriptThread,
    Turn,
)

MODEL_NAME: Final = "replay"
_PIECE: Final = 24
_MAX_PIECES: Final = 200

_HOW_TO_GO_ON: Final = (
    "The replay engine plays scripted answers for the bundled demo tasks only. To work on tasks of your own, set "
    "JOURNEYMAN_MODEL_BASE_URL (and JOURNEYMAN_MODEL_API_KEY, JOURNEYMAN_MODEL_STANDARD, JOURNEYMAN_MODEL_FAST) to an "
    "OpenAI-compatible API and start again."
)


class UnknownTask(NotFound):
    code = "replay_unknown_task"


class NoScript(Unavailable):
    """No script is about this task: it was begun with a model, which this start does not know. It waits for one that does."""

    code = "replay_no_script"


class ScriptMismatch(InvalidInput):
    code = "replay_script_mismatch"


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send: ``fault`` comes first; without one, or after it, the content."""

    id: str
    model: str
    turn: Turn
    fault: Fault | None
    usage: Mapping[str, Any]

    @property
    def text(self) -> str:
        return "" if self._is_empty else self.turn.text * self.turn.text_times

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        return [] if self._is_empty else _wire_calls(self.id, self.turn)

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.tool_calls else "stop"

    @property
    def _is_empty(self) -> bool:
        return self.fault is not None and self.fault.kind == "empty"

    def completion(self) -> dict[str, Any]:
        """The whole answer as one ``chat.completion`` object."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.turn.reasoning and not self._is_empty:
            message["reasoning_content"] = self.turn.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return {**self._envelope("chat.completion"), "choices": [choice], "usage": dict(self.usage)}

    def chunks(self, *, include_usage: bool) -> Iterator[dict[str, Any]]:
        """The answer as ``chat.completion.chunk`` objects: role, reasoning, text, tool calls, finish, usage."""
        yield self._chunk({"role": "assistant", "content": ""})
        if not self._is_empty:
            for piece in _pieces(self.turn.reasoning or ""):
                yield self._chunk({"reasoning_content": piece})
        for piece in _pieces(self.text):
            yield self._chunk({"content": piece})
        for index, call in enumerate(self.tool_calls):
            function = call["function"]
            head = {"index": index, "id": call["id"], "type": "function"}
            yield self._chunk({"tool_calls": [{**head, "function": {"name": function["name"], "arguments": ""}}]})
            for piece in _pieces(function["arguments"]):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield self._chunk({}, self.finish_reason)
        if include_usage:
            yield {**self._envelope("chat.completion.chunk"), "choices": [], "usage": dict(self.usage)}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._envelope("chat.completion.chunk"), "choices": [choice]}

    def _envelope(self, kind: str) -> dict[str, Any]:
        # No clock: the same request gives the same bytes.
        return {"id": self.id, "object": kind, "created": 0, "model": self.model}


class ReplayPlayer:
    """Stateless but for the counters of faults that strike a limited number of times."""

    def __init__(self, catalog: ReplayCatalog) -> None:
        self._catalog = catalog
        self._struck: Counter[str] = Counter()

    def answer(self, request: Mapping[str, Any], raw: bytes = b"") -> Answer:
        """The answer for the body of a chat completion request; ``raw`` is what is kept of it when the script says so.

        Raises :class:`NoScript` for tasks and :class:`UnknownTask` for conversations that no script covers, :class:`ScriptMismatch` when the
        conversation is not where the script says it must be, and ``InvalidInput`` for other bodies.
        """
        messages = request.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise InvalidInput("'messages' must be a list of message objects.")
        conversation = Conversation.read(messages)
        if conversation is None:
            raise UnknownTask(f"This is not the conversation of an agent with a task. {_HOW_TO_GO_ON}")
        script, thread_place, thread = self._find(conversation)
        if script.record:
            self._catalog.record(conversation.instruction, raw)
        found = thread.turn_at(conversation.turn)
        where = f"script {script.name!r}, {_name_of(conversation)}, turn {conversation.turn + 1}"
        if found is None:
            raise UnknownTask(f"The script has ended: {where} is not in it. {_HOW_TO_GO_ON}")
        turn_place, turn = found
        _check_expectation(turn, conversation, where)
        place = f"{script.name}\x1f{conversation.instruction}\x1f{thread_place}\x1f{conversation.turn}"
        identity = hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        arguments = sum(len(call["function"]["arguments"]) for call in _wire_calls(identity, turn))
        answer_bytes = len(turn.text) * turn.text_times + len(turn.reasoning or "") + arguments
        usage = turn.usage or estimated_usage(messages, request.get("tools"), answer_bytes)
        fault = self._strike(f"{script.name}\x1f{conversation.instruction}\x1f{thread_place}\x1f{turn_place}", turn)
        model = request.get("model")
        return Answer(f"chatcmpl-{identity}", model if isinstance(model, str) else MODEL_NAME, turn, fault, usage)

    def _find(self, conversation: Conversation) -> tuple[Script, int, ScriptThread]:
        script = self._catalog.script_for(conversation.instruction)
        if script is None:
            problems = " ".join(self._catalog.problems)
            raise NoScript(f"No script plays this task. {_HOW_TO_GO_ON} {problems}".rstrip())
        found = conversation.thread_in(script)
        if found is None:
            raise UnknownTask(f"Script {script.name!r} has no thread for {_name_of(conversation)}. {_HOW_TO_GO_ON}")
        return script, *found

    def _strike(self, key: str, turn: Turn) -> Fault | None:
        if turn.fault is None or self._struck[key] >= turn.fault.times:
            return None
        self._struck[key] += 1
        return turn.fault


def error_body(error: JourneymanError) -> dict[str, Any]:
    """In the form of the OpenAI API."""
    kind = "server_error" if error.retryable else "invalid_request_error"
    body = {"message": error.message, "type": kind, "param": None, "code": error.code, "retryable": error.retryable}
    return {"error": body}


def _check_expectation(turn: Turn, conversation: Conversation, where: str) -> None:
    missing = None
    if turn.expect is not None and turn.expect not in conversation.news:
        missing = turn.expect
    elif turn.expect_regex is not None and re.search(turn.expect_regex, conversation.news) is None:
        missing = turn.expect_regex
    if missing is not None:
        raise ScriptMismatch(
            f"The script has lost touch with the task: at {where} the last messages must contain {missing!r}, "
            f"but they are: {conversation.news[-600:]!r}"
        )


def _name_of(conversation: Conversation) -> str:
    details = (("subtask", conversation.subtask), ("round", conversation.round), ("revision", conversation.revision))
    return ", ".join(
        [f"role {conversation.role}", *(f"{name} {value}" for name, value in details if value is not None)]
    )


def _wire_calls(identity: str, turn: Turn) -> list[dict[str, Any]]:
    calls = []
    for index, call in enumerate(turn.tool_calls):
        arguments = call.raw_arguments
        if arguments is None:
            arguments = json.dumps(call.arguments or {}, ensure_ascii=False)
        call_id = f"call_{hashlib.sha256(f'{identity}/{index}'.encode()).hexdigest()[:20]}"
        calls.append({"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    return calls


def _pieces(text: str) -> Sequence[str]:
    size = max(_PIECE, -(-len(text) // _MAX_PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]
