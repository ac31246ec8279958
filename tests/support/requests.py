"""Recorded request bodies, cut into what stands before the messages and the messages themselves, byte for byte."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from journeyman.platform.replay.conversation import Conversation


@dataclass(frozen=True)
class Recorded:
    """``head``: all bytes before the array of messages; ``array``: the array without its closing bracket."""

    head: bytes
    array: bytes
    messages: list[dict[str, Any]]

    @classmethod
    def read(cls, body: bytes) -> "Recorded":
        head, _, rest = body.partition(b'"messages":')
        text = rest.decode("utf-8", "surrogatepass")
        messages, end = json.JSONDecoder().raw_decode(text)
        return cls(head, text[: end - 1].encode("utf-8", "surrogatepass"), messages)

    @property
    def conversation(self) -> tuple[str, ...]:
        """Whose it is: role, subtask, round, revision."""
        found = Conversation.read(self.messages)
        assert found is not None
        return tuple(str(part) for part in (found.role, found.subtask, found.round, found.revision))

    @property
    def segment(self) -> str:
        """The opening: another one after each compaction."""
        return str(self.messages[1]["content"])

    @property
    def wants_summary(self) -> bool:
        return "replaced by your summary" in str(self.messages[-1].get("content"))


def conversations(bodies: Iterable[bytes]) -> dict[tuple[str, ...], list[Recorded]]:
    """The requests of each conversation, in order."""
    found: dict[tuple[str, ...], list[Recorded]] = {}
    for body in bodies:
        recorded = Recorded.read(body)
        found.setdefault(recorded.conversation, []).append(recorded)
    return found


def shared_prefix(former: Recorded, latter: Recorded) -> int:
    """Bytes of the latter request that an engine's prefix cache has from the former, those before the messages included."""
    if former.head != latter.head:
        return 0
    whole, new = former.head + former.array, latter.head + latter.array
    if new.startswith(whole):
        return len(whole)
    return next((place for place, (a, b) in enumerate(zip(whole, new, strict=False)) if a != b), len(new))
