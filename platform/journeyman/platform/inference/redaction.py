"""Text from engines on its way into errors: short, on one line, and without secrets."""

import re
from collections.abc import Iterable
from typing import Final

from journeyman.platform.kit.redaction import MARK, redact_text

MAX_ERROR_TEXT: Final = 2000
"""Characters of an engine's own words that an error message keeps."""

_READ_AT_MOST: Final = 16 * MAX_ERROR_TEXT

# Engines quote keys back, partly masked ("Incorrect API key provided: sk-abc***xyz") or in makers' own shapes.
_KEYS: Final = (
    re.compile(r"\b(?:sk|pk|rk|gsk|xai|nvapi|r8)[-_][A-Za-z0-9_\-*.]{4,}"),
    re.compile(r"\bAIza[0-9A-Za-z_\-]{20,}"),
)


def bounded(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """The text, cut in the middle so that about ``limit`` of its characters remain."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"


def error_text(text: str, secrets: Iterable[str] = ()) -> str:
    """An engine's words as they may appear in an error; ``secrets`` are hidden besides all that looks like one."""
    # A first cut, so that megabytes of an error page cost nothing. A secret that it splits lies in the middle, which
    # the last cut leaves out.
    text = bounded(" ".join(text.split()), _READ_AT_MOST)
    for secret in secrets:
        # A very short "secret" is a placeholder such as "-", and replacing it would shred the text.
        if len(secret) >= 4:
            text = text.replace(secret, MARK)
    text = redact_text(text)
    for pattern in _KEYS:
        text = pattern.sub(MARK, text)
    return bounded(text)
