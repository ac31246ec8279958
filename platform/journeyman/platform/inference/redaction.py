"""Text from engines on its way into errors and logs: short, and without secrets."""

import re
from collections.abc import Iterable
from typing import Final

MAX_ERROR_TEXT: Final = 2000
"""Characters of an engine's own words that an error message keeps."""

_MARK: Final = "[redacted]"
# Engines quote keys back, sometimes partly masked ("Incorrect API key provided: sk-abc***xyz").
_PATTERNS: Final = (
    re.compile(r"(?i)\bbearer\s+[^\s\"',;]+"),
    re.compile(r"\b(?:sk|pk|rk|hf|gsk|xai|key|nvapi|r8|AIza)[-_][A-Za-z0-9_\-*.]{6,}"),
    re.compile(r"\bAIza[0-9A-Za-z_\-]{20,}"),
    re.compile(r"(?i)\b(api[-_ ]?key|token|secret|password)(\"?\s*[:=]\s*\"?)[^\s\"',;]{6,}"),
    re.compile(r"(?i)(https?://)[^/\s:@]+:[^/\s@]+@"),
)


def bounded(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """The text, cut in the middle so that it has at most about ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the given secrets and without anything that looks like a key."""
    for secret in secrets:
        # A very short "secret" is a placeholder such as "-", and replacing it would shred the text.
        if len(secret) >= 4:
            text = text.replace(secret, _MARK)
    for pattern in _PATTERNS:
        text = pattern.sub(_MARK, text)
    return text


def error_text(text: str, secrets: Iterable[str] = ()) -> str:
    """An engine's words as they may appear in an error: redacted, then bounded, on one line."""
    return bounded(" ".join(redacted(text, secrets).split()))
