"""Classification of refusals by status, code and wording.

The rules are data: ``families/*.toml``, one file a family of engines. Each rule names the documented form it comes from
(``source``) and an ``example`` of it, which the tests feed through :func:`classify`.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final

MAX_WORDS: Final = 4_000
"""Characters of an engine's message that are searched."""
_MAX_LIMIT: Final = 1_000_000_000
_LEAST_OUTPUT: Final = 256
"""Tokens. Where the prompt leaves less than this for the answer, the prompt is what is too long."""


class RefusalKind(StrEnum):
    """What a refusal means for the call."""

    CONTEXT_TOO_LONG = "context_too_long"
    """The prompt does not fit the model. ``limit`` is the context in tokens, when the engine names it."""
    OUTPUT_TOO_LARGE = "output_too_large"
    """``max_tokens`` is too large. ``limit`` is the largest value, when the engine names it or it follows from what it says."""
    PARAMETER = "parameter"
    """A parameter or message field is unknown or not supported: ``parameter``, and ``instead`` where the engine names another."""
    ROLE_ORDER = "role_order"
    """The engine's chat template refuses the order of roles."""
    CONTENT_FILTER = "content_filter"
    """A filter of the engine refused the prompt or the answer."""
    ACCOUNT = "account"
    """Key, permission, quota or billing: nothing but a person can change it."""
    MODEL_NOT_FOUND = "model_not_found"
    TOOLS_UNSUPPORTED = "tools_unsupported"
    """The engine or the model takes no tools, or needs a parser for tool calls."""
    INVALID_TOOL_CALL = "invalid_tool_call"
    """The engine could not parse the call that the model wrote. Asking again may help."""
    BUSY = "busy"
    """Overloaded, rate limited, loading: the same call may succeed later."""
    UNKNOWN = "unknown"
    """None of the rules fits."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """``family`` names the data file whose rule fits; None for a classification by status alone."""

    kind: RefusalKind
    family: str | None = None
    limit: int | None = None
    parameter: str | None = None
    instead: str | None = None
    context: int | None = None
    """The model's whole context in tokens, when the engine names it."""


@dataclass(frozen=True, slots=True)
class _Rule:
    family: str
    kind: RefusalKind
    statuses: frozenset[int]
    code: re.Pattern[str] | None
    words: re.Pattern[str] | None
    fields: Mapping[str, str] = field(default_factory=dict)

    def read(self, status: int, code: str, words: str) -> Refusal | None:
        if self.statuses and status not in self.statuses:
            return None
        if self.code is not None and self.code.fullmatch(code) is None:
            return None
        found: Mapping[str, str | None] = {}
        if self.words is not None:
            match = self.words.search(words)
            if match is None:
                return None
            found = match.groupdict()
        kind, limit, context = _limits(self.kind, found)
        return Refusal(
            kind,
            self.family,
            limit=limit,
            parameter=_field_name(self.fields.get("parameter") or found.get("parameter")),
            instead=self.fields.get("instead") or found.get("instead"),
            context=context,
        )


def classify(status: int, words: str, *, code: str = "", parameter: str | None = None) -> Refusal:
    """Classify an engine's refusal.

    ``status`` is its HTTP status, ``words`` its message, ``code`` the ``code`` or ``type`` of its error object, ``parameter``
    the error object's ``param``. The first rule that fits decides; where none does, the status decides.
    """
    words = words[:MAX_WORDS]
    for rule in rules():
        refusal = rule.read(status, code, words)
        if refusal is not None:
            if refusal.kind is RefusalKind.PARAMETER and refusal.parameter is None and parameter:
                return replace(refusal, parameter=_field_name(parameter))
            return refusal
    if status in {401, 402, 403}:
        return Refusal(RefusalKind.ACCOUNT)
    if status in {408, 409, 425, 429} or status >= 500:
        return Refusal(RefusalKind.BUSY)
    return Refusal(RefusalKind.UNKNOWN)


@cache
def rules() -> tuple[_Rule, ...]:
    """All rules: files in the order of their names, rules in the order of their file."""
    return tuple(
        _Rule(
            family=family,
            kind=RefusalKind(rule["kind"]),
            statuses=frozenset(rule.get("statuses", ())),
            code=re.compile(rule["code"]) if "code" in rule else None,
            words=re.compile(rule["words"], re.IGNORECASE | re.DOTALL) if "words" in rule else None,
            fields={name: rule[name] for name in ("parameter", "instead") if name in rule},
        )
        for family, rule in documented()
    )


def documented() -> list[tuple[str, dict[str, Any]]]:
    """The rules as they are written down, each with its family."""
    folder = files("journeyman.platform.inference.refusals") / "families"
    listed = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return [
        (file.name.removesuffix(".toml"), rule)
        for file in listed
        for rule in tomllib.loads(file.read_text(encoding="utf-8"))["rule"]
    ]


def _limits(kind: RefusalKind, found: Mapping[str, str | None]) -> tuple[RefusalKind, int | None, int | None]:
    """The kind, the limit and the context. A prompt that leaves no room for an answer is too long, whatever was asked."""

    def number(name: str) -> int | None:
        text = found.get(name)
        value = min(int(re.sub(r"[,_ ]", "", text)), _MAX_LIMIT) if text else 0
        return value if value > 0 else None

    limit, context, prompt = number("limit"), number("context"), number("prompt")
    if kind is RefusalKind.CONTEXT_TOO_LONG:
        return kind, limit, limit
    if context is not None and prompt is not None:
        limit = context - prompt
        if limit < _LEAST_OUTPUT:
            return RefusalKind.CONTEXT_TOO_LONG, context, context
    return kind, limit, context


def _field_name(path: str | None) -> str | None:
    """The last name of a path: ``stream_options`` of ``"body", "stream_options"``, ``reasoning_content`` of ``messages[3].…``."""
    names = re.findall(r"[A-Za-z_]\w*", path or "")
    return names[-1] if names else None


def error_object(body: str) -> tuple[str, str, str | None, int | None] | None:
    """The message, the code, the parameter and the status in an engine's JSON error; None where the body is none.

    Forms: ``{"error": {"message", "type", "code", "param"}}`` (OpenAI), ``{"error": "…"}`` (Ollama), ``{"object": "error",
    "message", "type", "code"}`` (vLLM, Mistral), ``{"type": "error", "error": {…}}`` (Anthropic), ``[{"error": {"code", "message",
    "status"}}]`` (Gemini), ``{"detail": …}`` (FastAPI), and Mistral's lists of refused fields.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, Mapping):
        return None
    inner = value.get("error")
    if isinstance(inner, str):
        return inner, _text(value.get("code") or value.get("type")), None, None
    if not isinstance(inner, Mapping):
        inner = value
        is_error = value.get("object") == "error" or value.get("type") == "error" or "detail" in value
        if not is_error and not (isinstance(value.get("message"), str) and "choices" not in value):
            return None
    message = inner.get("message", inner.get("detail"))
    if not isinstance(message, str):
        message = json.dumps(message if message is not None else inner, ensure_ascii=False)
    status = next((number for number in (inner.get("code"), inner.get("status_code")) if isinstance(number, int)), None)
    code = next(
        (text for name in ("code", "type", "status") if isinstance(text := inner.get(name), str) and text != "error"),
        "",
    )
    parameter = inner.get("param")
    return (
        message,
        code,
        parameter if isinstance(parameter, str) else None,
        status if status is not None and 400 <= status < 600 else None,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
