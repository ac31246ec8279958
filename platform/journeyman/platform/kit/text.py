"""Text that PostgreSQL and JSON can hold: no NUL, no half of a surrogate pair."""

import re
from typing import Any, Final

_NUL_SHOWN: Final = "\u2400"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def cleaned(text: str) -> str:
    """The text with what cannot be stored made visible: NUL becomes U+2400, a lone surrogate U+FFFD."""
    if "\x00" in text:
        text = text.replace("\x00", _NUL_SHOWN)
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def unstorable(value: Any) -> str | None:
    """What cannot be stored of a text or of JSON, as the end of a sentence; found without recursion."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            if (problem := _unstorable_text(part)) is not None:
                return problem
        elif isinstance(part, dict):
            stack.extend(part.keys())
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
    return None


def _unstorable_text(text: str) -> str | None:
    if "\x00" in text:
        return "contains a NUL character (U+0000), which cannot be stored"
    if (found := None if text.isascii() else _SURROGATE.search(text)) is not None:
        return f"contains half of a surrogate pair at character {found.start()}, which is not valid Unicode text"
    return None
