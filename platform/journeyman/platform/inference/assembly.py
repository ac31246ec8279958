"""Puts the chunks of a streamed chat completion together, whatever shape the engine cuts them into."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from journeyman.platform.inference.errors import ModelRejected
from journeyman.platform.inference.port import Delta, OnDelta, ToolCall
from journeyman.platform.ledger.usage import TokenUsage

MAX_ANSWER_CHARS: Final = 64 * 1024 * 1024
"""An engine that never stops must not fill the worker's memory."""


_KNOWN_FIELDS: Final = frozenset({"index", "id", "type", "function"})
_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_NAME: Final = 64
"""Characters of a function's name that every engine takes back."""


def _sent_back(name: str) -> str:
    """A tool's name in the form that engines take back. Control tokens of the model's own format after the name are cut off."""
    name = name.strip().split("<|", 1)[0]
    name = name.removeprefix("functions.")
    return _NAME.sub("_", name)[:_MAX_NAME] or "unnamed"


def _text_of(value: object, of: str = "text") -> str:
    """The text of a message's content: a string, or the parts of this type in a list of parts."""
    if isinstance(value, str):
        return value if of == "text" else ""
    if not isinstance(value, list):
        return ""
    pieces = []
    for part in value:
        if isinstance(part, str) and of == "text":
            pieces.append(part)
        elif isinstance(part, Mapping) and part.get("type", "text") in {of, f"output_{of}"}:
            inner = part.get(of)
            pieces.append(_text_of(inner) if not isinstance(inner, str) else inner)
    return "".join(pieces)


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def arguments_are_empty(self) -> bool:
        return "".join(self.arguments).strip() in {"", "{}"}

    def is_restated_by(self, arguments: str) -> bool:
        """Whether these arguments replace those so far: all of them again with more, or real ones after an empty object."""
        if not self.arguments:
            return False
        so_far = "".join(self.arguments)
        if so_far.strip() == "{}":
            return arguments.lstrip().startswith("{")
        # Cumulative arguments begin with an object's brace and all that came before; a fragment that does so by chance would
        # have to repeat the whole beginning of its own object.
        return len(so_far) > 1 and so_far.lstrip().startswith("{") and arguments.startswith(so_far)

    def arguments_are_whole(self) -> bool:
        text = "".join(self.arguments)
        if not text.rstrip().endswith("}"):
            return False
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return False
        return True


class StreamAssembler:
    """Feed it each chunk as a JSON object; ``finish_reason`` is None until the engine has said that it is done.

    Tool calls arrive in many dialects, all of which are understood: cut into fragments by ``index``; whole in one
    delta; with the name or the id repeated in every fragment; several calls that all claim index 0 but differ in
    their ids; without index; without ids. Missing or doubled ids are replaced by ids derived from the request id, so
    that a repeated step names its calls alike.
    """

    def __init__(self, request_id: str, on_delta: OnDelta | None = None) -> None:
        self.finish_reason: str | None = None
        self.model = ""
        self.usage: TokenUsage | None = None
        self._request_id = request_id
        self._on_delta = on_delta
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._chars = 0

    def feed(self, chunk: Mapping[str, Any]) -> bool:
        """Take one chunk in. Returns whether it carried content, as opposed to bookkeeping.

        Raises :class:`ModelRejected` when the answer outgrows ``MAX_ANSWER_CHARS``.
        """
        self.model = chunk.get("model") or self.model
        self.usage = TokenUsage.from_wire(chunk.get("usage")) or self.usage
        has_content = False
        for choice in chunk.get("choices") or ():
            if choice.get("index") not in {0, None}:
                continue
            delta = choice.get("delta") or {}
            reasoning = _text_of(delta.get("reasoning_content") or delta.get("reasoning"))
            if reasoning:
                has_content = True
                self._grow(reasoning)
                self._reasoning.append(reasoning)
                self._tell(Delta("reasoning", reasoning))
            thought = _text_of(delta.get("content"), of="thinking")
            if thought:
                has_content = True
                self._grow(thought)
                self._reasoning.append(thought)
            text = _text_of(delta.get("content") or delta.get("refusal"))
            if text:
                has_content = True
                self._grow(text)
                self._text.append(text)
                self._tell(Delta("text", text))
            for fragment in delta.get("tool_calls") or ():
                has_content = True
                self._take_fragment(fragment)
            finish_reason = choice.get("finish_reason")
            if isinstance(finish_reason, str) and finish_reason:
                self.finish_reason = finish_reason
        return has_content

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str | None:
        return "".join(self._reasoning) or None

    def tool_calls(self) -> tuple[ToolCall, ...]:
        taken: set[str] = set()
        calls = []
        for position, call in enumerate(self._calls):
            call_id = call.id
            if not call_id or call_id in taken:
                digest = hashlib.sha256(f"{self._request_id}\x1f{position}".encode()).hexdigest()
                call_id = f"call_{digest[:24]}"
            taken.add(call_id)
            calls.append(ToolCall(call_id, _sent_back(call.name), "".join(call.arguments), call.extra))
        return tuple(calls)

    def _take_fragment(self, fragment: Mapping[str, Any]) -> None:
        function = fragment.get("function") or {}
        name = function.get("name") or ""
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            # Some engines send the parsed object instead of its text.
            arguments = json.dumps(arguments, ensure_ascii=False)
        call = self._call_for(fragment.get("index"), fragment.get("id") or "", name)
        first = not call.name and not call.arguments
        if name and name != call.name and not call.arguments:
            call.name += name
        for key, value in fragment.items():
            if key not in _KNOWN_FIELDS and value is not None:
                call.extra[key] = value
        if arguments:
            self._grow(arguments)
            if call.is_restated_by(arguments):
                call.arguments = [arguments]
            else:
                call.arguments.append(arguments)
        self._tell(Delta("tool_call", arguments, self._calls.index(call), call.name if first else None))

    def _call_for(self, index: int | None, call_id: str, name: str) -> _Call:
        known: _Call | None
        if index is None:
            known = next((call for call in reversed(self._calls) if call_id and call.id == call_id), None)
            known = known or (self._calls[-1] if self._calls else None)
        else:
            same = [call for call in reversed(self._calls) if call.index == index]
            known = next((call for call in same if call_id and call.id == call_id), same[0] if same else None)
        if known is not None and not self._begins_another(known, call_id, name):
            known.id = known.id or call_id
            return known
        call = _Call(index, call_id)
        self._calls.append(call)
        return call

    @staticmethod
    def _begins_another(known: _Call, call_id: str, name: str) -> bool:
        """Whether a fragment that points at a known call is in truth the start of the next one."""
        if call_id and known.id and call_id != known.id:
            # A new id alone may be noise (an id of the chunk); with a name it is a new call.
            return bool(name)
        if call_id and call_id == known.id:
            return False
        # Without an id, a named fragment after whole arguments that say something tells calls apart. An empty object may stand
        # before the real arguments.
        return bool(name) and known.arguments_are_whole() and not known.arguments_are_empty()

    def _tell(self, delta: Delta) -> None:
        if self._on_delta is not None:
            self._on_delta(delta)

    def _grow(self, piece: str) -> None:
        self._chars += len(piece)
        if self._chars > MAX_ANSWER_CHARS:
            raise ModelRejected(
                f"The model's answer passed {MAX_ANSWER_CHARS // (1024 * 1024)} Mi characters and was cut off; "
                "ask for a smaller answer or set max_tokens.",
                code="answer_too_large",
            )
