"""Secrets on their way into logs and traces: replaced, never shown.

Three nets, since each has holes: the name of a field, the shape of a value, and the exact values that this process was
given as secrets.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

MARK: Final = "[redacted]"

_MIN_SECRET: Final = 8
"""Shorter values are not registered: replacing them would shred ordinary text."""

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:authorization|cookie|set-cookie|api[_-]?keys?|access[_-]?key|secret(?:[_-]?key)?|secrets|password|passwd|"
    r"private[_-]?key|credentials?|bearer)$|(?:^|[_\-.])token$|^x-api-key$",
    re.IGNORECASE,
)

_SCHEME: Final = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=\-]{4,}", re.IGNORECASE)
_ASSIGNED: Final = re.compile(
    r"\b((?:[a-z0-9]+[_-])*(?:api[_-]?key|access[_-]?key|secret[_-]?key|secret|password|passwd|token)"
    r"[\"']?\s*[=:]\s*[\"']?)(?!\[redacted\])[^\s\"'&,;}]{4,}",
    re.IGNORECASE,
)
_SHAPES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (_SCHEME, rf"\1 {MARK}"),
    (re.compile(r"\bjm_[A-Za-z0-9_\-]{6,}"), MARK),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_\-]{8,}"), MARK),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|whsec_)[A-Za-z0-9_\-+/=]{10,}"), MARK),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), MARK),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{6,}\.[A-Za-z0-9_\-]{6,}\.[A-Za-z0-9_\-]*"), MARK),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MARK),
    (re.compile(r"(\b[a-z][a-z0-9+.\-]*://[^\s/:@]*:)[^\s/@]+@", re.IGNORECASE), rf"\1{MARK}@"),
    (_ASSIGNED, rf"\1{MARK}"),
)

# What prose puts where a secret would stand: "basic authentication", "token: string", "password=$PASSWORD".
_PLAIN_WORD: Final = re.compile(r"[A-Za-z][a-z]*(?:-[a-z]+)*[.]?")
_PLACEHOLDER: Final = re.compile(
    r"[$<{(\[%*.\\].*|(?:string|str|bytes|text|int|integer|bool|boolean|none|null|undefined|true|false|required|optional|"
    r"needed|missing|empty|os\.environ.*|process\.env.*|env(?:iron)?\b.*)[.)\]`]*",
    re.IGNORECASE,
)

_known: set[str] = set()


def register_secret(value: str) -> None:
    """Let every later log line and span of this process hide this exact value wherever it appears."""
    if len(value) >= _MIN_SECRET:
        _known.add(value)


def names_a_secret(name: str) -> bool:
    """Whether a field of that name holds a secret. Counts such as ``max_tokens`` do not."""
    return _SECRET_NAME.search(name) is not None


def redact_text(text: str) -> str:
    """The text without registered secrets and without anything shaped like a key, a token or a password."""
    for secret in _known:
        if secret in text:
            text = text.replace(secret, MARK)
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text


def holds_secret(text: str) -> bool:
    """Whether the text has a registered secret, or something shaped like a key, a token or a password.

    Stricter with its suspicion than ``redact_text``, which had better hide a harmless word than show a secret: prose about
    passwords and placeholders in their place pass.
    """
    if any(secret in text for secret in _known):
        return True
    for shape, _ in _SHAPES:
        for match in shape.finditer(text):
            value = match.group().removeprefix(match.group(1)).strip() if shape in {_SCHEME, _ASSIGNED} else ""
            harmless = _PLAIN_WORD if shape is _SCHEME else _PLACEHOLDER
            if not value or not harmless.fullmatch(value):
                return True
    return False


def redact(value: Any, name: str = "") -> Any:
    """The value with every secret inside replaced, whatever the depth. Numbers and booleans are never secrets."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if name and names_a_secret(name):
        return MARK
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bytes):
        return redact_text(value.decode("utf-8", "replace"))
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item) for item in value]
    return value
