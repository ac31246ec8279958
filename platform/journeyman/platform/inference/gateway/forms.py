"""The form in which an engine takes calls, learnt from its refusals.

An engine that refuses a field, a size or an order of roles gets the same call again in a form that it takes. What was learnt
holds for that project, engine and model from then on, for as long as the gateway runs. A form is a pure function of the call, so a
conversation that only grows stays byte-stable for the engine's prefix cache.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from journeyman.platform.inference.refusals import Refusal, RefusalKind

MAX_RETRIES: Final = 8
"""Forms that are tried for one call."""
MAX_FORMS: Final = 1000
BRIDGE: Final = "Understood."
"""What stands in the assistant's turn that is put between two turns which an engine refuses side by side."""
_KEPT: Final = frozenset({"model", "messages", "stream", "tools"})
"""Fields without which a call would be another call."""
_OUTPUT_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_LEAST_OUTPUT: Final = 256
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_messages_decoder = msgspec.json.Decoder(list[dict[str, Any]])


@dataclass(slots=True)
class EngineForm:
    """What one engine takes for one model. The empty form leaves a call as it is."""

    dropped: set[str] = field(default_factory=set)
    """Top-level fields that are left out."""
    renamed: dict[str, str] = field(default_factory=dict)
    message_fields: set[str] = field(default_factory=set)
    """Fields of messages that are left out."""
    max_output: int | None = None
    """Largest ``max_tokens``."""
    bridged: bool = False
    """User and assistant turns alternate: :data:`BRIDGE` is put between a tool's or a user's turn and a user's."""
    system_as_user: bool = False
    """System messages are sent as user messages."""

    @property
    def plain(self) -> bool:
        return self == EngineForm()

    def apply(self, body: bytes, cap: int | None = None) -> bytes:
        """The body in this form. ``cap`` is a further limit of the output for this call alone, in tokens."""
        if self.plain and cap is None:
            return body
        fields = _decoder.decode(body)
        limit = min((value for value in (self.max_output, cap) if value is not None), default=None)
        if limit is not None:
            for name in _OUTPUT_LIMITS:
                if name in fields and _number(fields[name]) > limit:
                    fields[name] = _raw(limit)
        for name in self.dropped:
            fields.pop(name, None)
        # Built anew in order, so that a renamed field stays where it was.
        fields = {self.renamed.get(name, name): value for name, value in fields.items()}
        if self.message_fields or self.bridged or self.system_as_user:
            fields["messages"] = _raw(list(self._messages(_messages_decoder.decode(fields["messages"]))))
        return msgspec.json.encode(fields)

    def learn(self, refusal: Refusal, sent: bytes) -> "int | bool":
        """Take the refusal of ``sent`` into the form. Returns False when no other form is known; a number is a cap for this call.

        The caller may then send the call again.
        """
        fields = _decoder.decode(sent)
        match refusal.kind:
            case RefusalKind.PARAMETER:
                return self._learn_parameter(refusal, fields, sent)
            case RefusalKind.OUTPUT_TOO_LARGE:
                return self._learn_output(refusal, fields)
            case RefusalKind.ROLE_ORDER:
                if not self.bridged:
                    self.bridged = True
                    return True
                if not self.system_as_user:
                    self.system_as_user = True
                    return True
        return False

    def _learn_parameter(self, refusal: Refusal, fields: Mapping[str, msgspec.Raw], sent: bytes) -> bool:
        name = refusal.parameter
        if name is None:
            return False
        if name in _OUTPUT_LIMITS and name in fields:
            other = _OUTPUT_LIMITS[1 - _OUTPUT_LIMITS.index(name)]
            if other not in self.renamed.values() and other not in self.renamed and name not in self.renamed.values():
                self.renamed[name] = other
            else:
                # Neither name is taken: the engine's own default holds.
                self.renamed = {}
                self.dropped.update(_OUTPUT_LIMITS)
            return True
        if name in fields:
            if name in _KEPT:
                return False
            self.dropped.add(name)
            return True
        if name not in self.message_fields and f'"{name}"'.encode() in sent and name not in {"role", "content"}:
            self.message_fields.add(name)
            return True
        return False

    def _learn_output(self, refusal: Refusal, fields: Mapping[str, msgspec.Raw]) -> "int | bool":
        asked = next((_number(fields[name]) for name in _OUTPUT_LIMITS if name in fields), None)
        if asked is None or asked <= 1:
            return False
        if refusal.limit is not None and refusal.limit < asked:
            if refusal.context is not None:
                # What this prompt leaves: no other call's limit.
                return refusal.limit
            self.max_output = refusal.limit
            return True
        if asked <= _LEAST_OUTPUT:
            return False
        self.max_output = max(asked // 2, _LEAST_OUTPUT)
        return True

    def _messages(self, messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        previous: str | None = None
        for index, message in enumerate(messages):
            kept = {name: value for name, value in message.items() if name not in self.message_fields}
            role = kept.get("role")
            if role in {"system", "developer"} and (self.system_as_user or (self.bridged and index > 0)):
                role = kept["role"] = "user"
            if self.bridged and role == "user" and previous in {"user", "tool"}:
                yield {"role": "assistant", "content": BRIDGE}
            yield kept
            previous = role if isinstance(role, str) else None


class EngineForms:
    """The newest :data:`MAX_FORMS` forms, by project, base URL and model.

    An engine's refusal may quote what a caller sent. So what is learnt from one project's calls changes no other project's.
    """

    def __init__(self) -> None:
        self._forms: OrderedDict[tuple[str, str, str], EngineForm] = OrderedDict()

    def of(self, project_id: str, base_url: str, model: str) -> EngineForm:
        """The form for the project's calls; the empty one where nothing was learnt."""
        return self._forms.get((project_id, base_url, model)) or EngineForm()

    def keep(self, project_id: str, base_url: str, model: str, form: EngineForm) -> None:
        """Use the form for further calls."""
        key = (project_id, base_url, model)
        self._forms[key] = form
        self._forms.move_to_end(key)
        while len(self._forms) > MAX_FORMS:
            self._forms.popitem(last=False)


def _number(raw: msgspec.Raw) -> int:
    try:
        return int(msgspec.json.decode(raw, type=int))
    except msgspec.DecodeError:
        return 0


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
