"""Puts the chunks of a streamed chat completion together, whatever shape the engine cuts them into."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from journeyman.platform.inference.errors import ModelRejected
from journeyman.platform.inference.port import Delta, OnDelta, TokenUsage, ToolCall

MAX_ANSWER_CHARS: Final = 64 * 1024 * 1024
"""An engine that never stops must not fill the worker's memory."""


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

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
        usage = chunk.get("usage")
        if isinstance(usage, Mapping):
            self.usage = TokenUsage.from_wire(usage)
        has_content = False
        for choice in chunk.get("choices") or ():
            if choice.get("index") not in {0, None}:
                continue
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            if isinstance(reasoning, str) and reasoning:
                has_content = True
                self._grow(reasoning)
                self._reasoning.append(reasoning)
                self._tell(Delta("reasoning", reasoning))
            text = delta.get("content") or delta.get("refusal")
            if isinstance(text, str) and text:
                has_content = True
                self._grow(text)
                self._text.append(text)
                self._tell(Delta("text", text))
            for fragment in delta.get("tool_calls") or ():
                has_content = True
                self._take_fragment(fragment)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
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
            calls.append(ToolCall(call_id, call.name, "".join(call.arguments)))
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
        if arguments:
            self._grow(arguments)
            call.arguments.append(arguments)
        self._tell(Delta("tool_call", arguments, self._calls.index(call), call.name if first else None))

    def _call_for(self, index: int | None, call_id: str, name: str) -> _Call:
        known: _Call | None
        if index is None:
            known = self._calls[-1] if self._calls else None
        else:
            known = next((call for call in reversed(self._calls) if call.index == index), None)
        if known is not None and not self._begins_another(known, index, call_id, name):
            known.id = known.id or call_id
            return known
        call = _Call(index, call_id)
        self._calls.append(call)
        return call

    @staticmethod
    def _begins_another(known: _Call, index: int | None, call_id: str, name: str) -> bool:
        """Whether a fragment that points at a known call is in truth the start of the next one."""
        if call_id and known.id and call_id != known.id:
            # A new id alone may be noise (an id of the chunk); with a name it is a new call.
            return bool(name)
        if call_id and call_id == known.id:
            return False
        # Without index and id, only a named fragment after whole arguments tells calls apart.
        return index is None and bool(name) and known.arguments_are_whole()

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
