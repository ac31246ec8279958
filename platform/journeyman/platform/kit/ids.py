"""Identifiers: UUIDv7 behind a readable prefix, so that they sort by time and say what they name."""

import hashlib
import os
import re
import time
import uuid
from typing import Final

PREFIXES: Final = {
    "organization": "org",
    "project": "proj",
    "api_key": "key",
    "task": "task",
    "plan": "plan",
    "thread": "thr",
    "message": "msg",
    "event": "evt",
    "checkpoint": "ckpt",
    "snapshot": "snap",
    "artifact": "art",
    "receipt": "rcpt",
    "sandbox": "sbx",
    "ledger_entry": "led",
    "upload": "upl",
    "memory": "mem",
    "approval": "apr",
    "command": "cmd",
    "person_message": "pmsg",
    "note": "note",
    "rewind": "rwd",
    "request": "req",
}

_ID = re.compile(r"[a-z]{2,8}_[0-9a-f]{32}")


def uuid7() -> uuid.UUID:
    """A UUIDv7 (RFC 9562 section 5.7): 48 bits of Unix milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


def new_id(kind: str) -> str:
    """A new id for one of the kinds in ``PREFIXES``, for example ``task_0192…`` (32 hex digits)."""
    return f"{PREFIXES[kind]}_{uuid7().hex}"


def derived_id(kind: str, *parts: object) -> str:
    """The id that the same parts always give: a repeated activity names the same row as its first attempt."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()
    return f"{PREFIXES[kind]}_{digest[:32]}"


def is_id(kind: str, value: str) -> bool:
    """Whether the value has the form of an id of that kind."""
    return value.startswith(PREFIXES[kind] + "_") and _ID.fullmatch(value) is not None
