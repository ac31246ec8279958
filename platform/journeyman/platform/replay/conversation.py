"""Where a conversation stands, read from its messages alone: the engine may be killed at any time and knows nothing else."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from journeyman.agents.roles import Role
from journeyman.platform.replay.script import Script, ScriptThread
from journeyman.platform.sandboxes.errors import LOST_WHILE_RUNNING

_ROLE: Final = re.compile(r"You are the (Planner|Coder|Reviewer) of Journeyman\.")
# On lines of their own, as the platform writes them, so that text which speaks of the tags does not end the task.
_TASK: Final = re.compile(r"<task>\n(.*?)\n</task>$|<task>(.*?)</task>", re.DOTALL | re.MULTILINE)
_FIELD: Final = re.compile(r"^(Subtask|Round|Revision|Turn):[ \t]*(\S+)[ \t]*$", re.MULTILINE)

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """``turn`` counts the answers given since the first user message, plus ``Turn: <n>`` of a compacted one."""

    instruction: str
    role: Role
    subtask: str | None
    round: int | None
    revision: int | None
    turn: int
    news: str
    """Text of all messages since the last answer."""

    @classmethod
    def read(cls, messages: Sequence[Message]) -> "Conversation | None":
        """None when the messages are not those of a Journeyman agent with a task."""
        system = next((text_of(m) for m in messages if m.get("role") in {"system", "developer"}), "")
        role = _ROLE.match(system)
        first = next((place for place, m in enumerate(messages) if m.get("role") == "user"), None)
        if role is None or first is None:
            return None
        opening = text_of(messages[first])
        task = _TASK.search(opening)
        if task is None:
            return None
        # The instruction is the user's text: lines in it that look like fields are not. Of others the first counts.
        fields: dict[str, str] = {}
        for name, value in _FIELD.findall(opening[: task.start()] + opening[task.end() :]):
            fields.setdefault(name, value)
        answers = _answers_in_effect(messages[first:])
        news: list[str] = []
        for message in reversed(messages):
            if message.get("role") == "assistant":
                break
            news.insert(0, text_of(message))
        return cls(
            instruction=(task.group(1) or task.group(2) or "").strip(),
            role=Role(role.group(1).lower()),
            subtask=fields.get("Subtask"),
            round=_number(fields.get("Round")),
            revision=_number(fields.get("Revision")),
            turn=answers + (_number(fields.get("Turn")) or 0),
            news="\n".join(news),
        )

    def thread_in(self, script: Script) -> tuple[int, ScriptThread] | None:
        """The thread that plays this conversation, with its place in the script."""
        best: tuple[int, int, ScriptThread] | None = None
        for place, thread in enumerate(script.threads):
            if thread.role != self.role:
                continue
            wanted = (
                (thread.subtask, self.subtask),
                (thread.round, self.round),
                (thread.revision, self.revision),
            )
            if any(theirs is not None and theirs != ours for theirs, ours in wanted):
                continue
            named = sum(theirs is not None for theirs, _ in wanted)
            if best is None or named > best[0]:
                best = (named, place, thread)
        return None if best is None else (best[1], best[2])


def _answers_in_effect(messages: Sequence[Message]) -> int:
    """The answers whose calls took effect. One whose sandbox was lost meanwhile did not: its turn is played again."""
    count = 0
    undone = False
    for message in messages:
        if message.get("role") == "assistant":
            count += 1
            undone = False
        elif message.get("role") == "tool" and LOST_WHILE_RUNNING in text_of(message) and not undone:
            undone = True
            count -= 1
    return count


def text_of(message: Message) -> str:
    """The message's text, whether its content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""


def estimated_usage(messages: Sequence[Message], tools: object, answer_bytes: int) -> dict[str, Any]:
    """Plausible numbers: four bytes a token, and as cached what the call before this one had sent, in blocks of 16."""
    last_answer = max((place for place, m in enumerate(messages) if m.get("role") == "assistant"), default=None)
    tools_size = _size(tools) if tools else 0
    prompt = (tools_size + _size(messages)) // 4 + 1
    cached = 0 if last_answer is None else (tools_size + _size(messages[:last_answer])) // 4 // 16 * 16
    completion = answer_bytes // 4 + 1
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None
