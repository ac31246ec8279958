"""What the gateway must know about a stream of server-sent events, learnt from as few of its bytes as possible."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from journeyman.platform.inference.port import TokenUsage

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"')
_NO_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
# A quotation mark inside JSON text is escaped, so that none of these can be met in what a model writes.
_DONE: Final = re.compile(rb"(?:^|\n)data:\s*\[DONE\]")
_ERROR: Final = re.compile(rb'(?:^|\n)data:\s*\{\s*"error"\s*:\s*[{"]')
_ROLE: Final = re.compile(rb'"role"\s*:\s*"\w*"\s*,?\s*')
_BOUNDARY: Final = re.compile(rb"\r?\n\r?\n")


class StreamScanner:
    """Takes the bytes of a stream as they come and gives them back, unchanged, cut at the ends of events.

    Bytes of an event that has not ended are held back: a caller can do nothing with them, and an error event can be
    put after a stream that broke off. With ``hide_usage`` the events that carry nothing but usage are left out.
    """

    __slots__ = ("_bytes", "_events", "_first_size", "_held", "_hide_usage", "done", "errored", "finished", "usage")

    def __init__(self, *, hide_usage: bool = False) -> None:
        self.usage: TokenUsage | None = None
        self.finished = False
        """The engine has given a finish reason."""
        self.done = False
        """``[DONE]`` was seen."""
        self.errored = False
        """The engine has sent an error event."""
        self._hide_usage = hide_usage
        self._held = bytearray()
        self._events = 0
        self._bytes = 0
        self._first_size = 0

    def feed(self, data: bytes) -> bytes:
        if not self._held and data.endswith(b"\n\n"):
            return self._scan(data)
        seen = len(self._held)
        self._held += data
        # An event's end may lie across two reads, at most three bytes back.
        end = max(self._held.rfind(b"\n\n", max(0, seen - 1)) + 2, self._held.rfind(b"\r\n\r\n", max(0, seen - 3)) + 4)
        if end < 4:
            return b""
        whole = bytes(memoryview(self._held)[:end])
        del self._held[:end]
        return self._scan(whole)

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    @property
    def whole(self) -> bool:
        """Whether the stream, if it ends now, is a complete answer or has said itself that it is none."""
        return self.done or self.finished or self.errored

    def estimated_completion_tokens(self) -> int:
        """For streams without usage: at least one token an event, or a quarter of the bytes beyond the envelopes."""
        content = self._bytes - self._events * self._first_size
        return max(self._events - 1, content // 4, 0)

    def _scan(self, events: bytes) -> bytes:
        if self._events == 0:
            # The first event of an answer has no content yet: without the role, its size is that of the envelope.
            self._first_size = len(_ROLE.sub(b"", events[: events.find(b"\n\n") + 2]))
        self._events += events.count(b"\n\n") or 1
        self._bytes += len(events)
        if not self.finished and _FINISH.search(events) is not None:
            self.finished = True
        if b"[DONE]" in events and _DONE.search(events) is not None:
            self.done = True
        if b'"error"' in events and _ERROR.search(events) is not None:
            self.errored = True
        if b'"usage"' in events and _USAGE.search(events) is not None:
            return self._take_usage(events)
        return events

    def _take_usage(self, events: bytes) -> bytes:
        kept: list[bytes] = []
        for event in _split(events):
            if _USAGE.search(event) is not None:
                usage = _usage_in(event)
                if usage is not None:
                    self.usage = usage
                    if self._hide_usage and _NO_CHOICES.search(event) is not None:
                        continue
            kept.append(event)
        return b"".join(kept) if self._hide_usage else events


def usage_of_completion(body: bytes) -> TokenUsage | None:
    """The usage in a whole, not streamed, response body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return _usage_of(value)


def error_event(problem: dict[str, Any]) -> bytes:
    """An event that ends a stream which broke; never followed by ``[DONE]``."""
    return b"data: " + json.dumps(problem).encode() + b"\n\n"


def _split(events: bytes) -> Iterator[bytes]:
    start = 0
    for boundary in _BOUNDARY.finditer(events):
        yield events[start : boundary.end()]
        start = boundary.end()
    if start < len(events):
        yield events[start:]


def _usage_in(event: bytes) -> TokenUsage | None:
    data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
    try:
        return _usage_of(json.loads(data))
    except (ValueError, RecursionError):
        return None


def _usage_of(value: Any) -> TokenUsage | None:
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return None
    try:
        return TokenUsage.from_wire(usage)
    except (TypeError, ValueError, AttributeError):
        return None
