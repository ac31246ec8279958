"""JSON as bytes that depend on nothing but the value: what prefix caches and digests compare."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    r"""The value as JSON: keys sorted, no spaces, UTF-8. ``ValueError`` for NaN and infinities, which JSON has not.

    Lone surrogates, which UTF-8 cannot carry, are written as the escape ``\udXXX``, so that every string that came out
    of a JSON parser goes through and comes back as it was.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, as 64 hex digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def printable(text: str) -> str:
    r"""The text with lone surrogates and NUL written out (``\udXXX``, ``\x00``), so that it can be stored and sent as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", r"\x00")


def is_json_object(text: str) -> bool:
    """Whether the text is exactly one JSON object that any parser accepts, at a depth that any parser takes."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
