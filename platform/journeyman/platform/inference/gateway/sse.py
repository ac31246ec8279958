"""What the gateway must know about a stream of server-sent events, learnt from as few of its bytes as possible."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from journeyman.platform.ledger.usage import TokenUsage

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"[^"]')
_CONTENT: Final = re.compile(rb'"(?:content|reasoning|reasoning_content|refusal|name|arguments)"\s*:\s*(?:"[^"]|[\[{])')
_TOOL_CALL: Final = re.compile(rb'"tool_calls"\s*:\s*\[\s*\{')
_NO_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
# A quotation mark inside JSON text is escaped, so that none of these can be met in what a model writes.
_DONE: Final = re.compile(rb"(?:^|\n)data:\s*\[DONE\]")
_ERROR: Final = re.compile(rb'"error"|(?:^|\n)event:\s*error')
_DATA: Final = re.compile(rb"(?:^|\n)data:")
_ROLE: Final = re.compile(rb'"role"\s*:\s*"\w*"\s*,?\s*')
_BOUNDARY: Final = re.compile(rb"\r?\n\r?\n")


class StreamScanner:
    """Takes the bytes of a stream as they come and gives them back, unchanged, cut at the ends of events.

    Bytes of an event that has not ended are held back: a caller can do nothing with them, and an error event can be
    put after a stream that broke off. With ``hide_usage`` the events that carry nothing but usage are left out.

    An answer is whole when the engine gave a finish reason, or ended with ``[DONE]`` after some content. In the second case
    the missing finish reason is put before ``[DONE]``, so that every reader of the stream can go by the finish reason alone.
    An error event, and all that follows it, is not passed on: :attr:`error` holds its JSON text.
    """

    __slots__ = (
        "_bytes", "_calls", "_content", "_events", "_first_size", "_held", "_hide_usage",
        "data_seen", "done", "error", "finished", "usage",
    )  # fmt: skip

    def __init__(self, *, hide_usage: bool = False) -> None:
        self.usage: TokenUsage | None = None
        self.finished = False
        """The engine has given a finish reason."""
        self.done = False
        """``[DONE]`` was seen."""
        self.error: str | None = None
        """The data of the error event that the engine sent."""
        self.data_seen = False
        """The last bytes held data, as opposed to comments that only keep the connection alive."""
        self._content = False
        self._calls = False
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

    def end(self) -> bytes:
        """What is still held when the stream has ended: an engine may leave out the blank line after its last event."""
        if not self._held.strip():
            return b""
        rest = bytes(self._held).rstrip() + b"\n\n"
        self._held.clear()
        return self._scan(rest)

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    @property
    def whole(self) -> bool:
        """Whether the stream, if it ends now, is a complete answer."""
        return self.error is None and (self.finished or (self.done and self._content))

    @property
    def begun(self) -> bool:
        """Whether some of an answer has come."""
        return self._content or self.finished

    def estimated_completion_tokens(self) -> int:
        """For streams without usage: at least one token an event, or a quarter of the bytes beyond the envelopes."""
        content = self._bytes - self._events * self._first_size
        return max(self._events - 1, content // 4, 0)

    def _scan(self, events: bytes) -> bytes:
        self.data_seen = _DATA.search(events) is not None
        if not self.data_seen or self.error is not None or self.done:
            # Comments alone; or what an engine sends after the end.
            return events if self.error is None and not self.done else b""
        if b"error" in events and _ERROR.search(events) is not None:
            events = self._cut_at_error(events)
        if self._events == 0:
            # The first event of an answer has no content yet: without the role, its size is that of the envelope.
            self._first_size = len(_ROLE.sub(b"", events[: events.find(b"\n\n") + 2]))
        self._events += len(_DATA.findall(events))
        self._bytes += len(events)
        if not self.finished and _FINISH.search(events) is not None:
            self.finished = True
        if not self._content and _CONTENT.search(events) is not None:
            self._content = True
        if not self._calls and b'"tool_calls"' in events and _TOOL_CALL.search(events) is not None:
            self._calls = True
        if b"[DONE]" in events and (done := _DONE.search(events)) is not None:
            self.done = True
            events = self._end_at(events, done)
        if b'"usage"' in events and _USAGE.search(events) is not None:
            return self._take_usage(events)
        return events

    def _cut_at_error(self, events: bytes) -> bytes:
        """What comes before an error event. A quotation mark inside JSON text is escaped, so few other events are parsed here."""
        kept: list[bytes] = []
        for event in _split(events):
            if _ERROR.search(event) is not None:
                data = _data_of(event)
                named = re.search(rb"(?:^|\n)event:\s*error", event) is not None
                if named or is_error(data):
                    self.error = data.decode("utf-8", "replace")
                    break
            kept.append(event)
        return b"".join(kept)

    def _end_at(self, events: bytes, done: re.Match[bytes]) -> bytes:
        """The events up to ``[DONE]``, with a finish reason where the engine gave none after some content."""
        start = done.start() + (1 if events[done.start() : done.start() + 1] == b"\n" else 0)
        before = events[:start]
        if not self.finished and self._content:
            reason = "tool_calls" if self._calls else "stop"
            choice = {"index": 0, "delta": {}, "finish_reason": reason}
            before += event_of({"object": "chat.completion.chunk", "choices": [choice]})
            self.finished = True
        return before + b"data: [DONE]\n\n"

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


def is_error(data: bytes) -> bool:
    """Whether the data of an event, or a whole body, is an error object and no part of an answer, whatever the order of its keys."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return False
    if value.get("error"):
        return True
    return not value.get("choices") and (value.get("object") == "error" or value.get("type") == "error")


def is_json(body: bytes) -> bool:
    """Whether it is JSON; what is too deep to be read is taken to be."""
    try:
        json.loads(body)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def stream_of_completion(body: bytes) -> bytes | None:
    """A whole completion as the events of a stream, for an engine that does not stream. None where the body is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or not choices:
        return None
    deltas = []
    for position, choice in enumerate(choices):
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            return None
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message = {
                **message,
                "tool_calls": [{"index": n, **call} for n, call in enumerate(calls) if isinstance(call, dict)],
            }
        deltas.append({"index": position, "delta": message, "finish_reason": choice.get("finish_reason") or None})
    head = {key: value[key] for key in ("id", "created", "model") if key in value}
    events = event_of({**head, "object": "chat.completion.chunk", "choices": deltas})
    if isinstance(value.get("usage"), dict):
        events += event_of({**head, "object": "chat.completion.chunk", "choices": [], "usage": value["usage"]})
    return events + b"data: [DONE]\n\n"


def event_of(data: dict[str, Any]) -> bytes:
    """One event of a stream. One that tells of an error is never followed by ``[DONE]``."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _split(events: bytes) -> Iterator[bytes]:
    start = 0
    for boundary in _BOUNDARY.finditer(events):
        yield events[start : boundary.end()]
        start = boundary.end()
    if start < len(events):
        yield events[start:]


def _usage_in(event: bytes) -> TokenUsage | None:
    try:
        return _usage_of(json.loads(_data_of(event)))
    except (ValueError, RecursionError):
        return None


def _data_of(event: bytes) -> bytes:
    return b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))


def _usage_of(value: Any) -> TokenUsage | None:
    return TokenUsage.from_wire(value.get("usage")) if isinstance(value, dict) else None
