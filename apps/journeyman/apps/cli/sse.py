"""Server-sent events, as the WHATWG HTML standard has them (section 9.2.6)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """``id`` is the last one seen so far on the stream; ``event`` is ``message`` when the stream names none."""

    event: str
    data: str
    id: str | None


def parse(lines: Iterable[str]) -> Iterator[ServerSentEvent | None]:
    """Events of a stream's lines, and None for each comment: a server's sign of life.

    Unknown fields are skipped; an unfinished event at the end is dropped.
    """
    last_id: str | None = None
    name = ""
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield ServerSentEvent(name or "message", "\n".join(data), last_id)
            name, data = "", []
            continue
        if line.startswith(":"):
            yield None
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "id" and "\x00" not in value:
            last_id = value
