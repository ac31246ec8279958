"""Searching everything that was said and done in a task, also what no model sees any more.

What a rewind went back to before is not found: its agents never did it.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.threads.models import Message, Thread

LIMIT: Final = 8
SNIPPET: Final = 600
"""Characters around the first word found."""
MAX_MESSAGES: Final = 20_000

_WORD: Final = re.compile(r"\w{3,}")


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a message: of which role's thread, its place there, and the text around what was looked for."""

    role: str
    seq: int
    text: str
    words: int


async def search_task(session: AsyncSession, task_id: str, query: str) -> list[Passage]:
    """The messages that hold most of the query's words, newest first among equals; at most ``LIMIT``."""
    words = {word.lower() for word in _WORD.findall(query)}
    if not words:
        return []
    rows = await session.stream(
        sa.select(Thread.role, Message.seq, Message.body)
        .join(Thread, Thread.id == Message.thread_id)
        .where(Message.task_id == task_id, Message.seq > 1, Thread.superseded_at.is_(None))
        .order_by(Message.created_at.desc(), Message.seq.desc())
        .limit(MAX_MESSAGES)
        .execution_options(yield_per=200)
    )
    best: list[Passage] = []
    async for role, seq, body in rows:
        text = _text(json.loads(body))
        lowered = text.lower()
        found = [lowered.find(word) for word in words]
        hits = sum(place >= 0 for place in found)
        if not hits or (len(best) == LIMIT and hits <= best[-1].words):
            continue
        start = max(0, min(place for place in found if place >= 0) - SNIPPET // 3)
        best.append(Passage(role, seq, " ".join(text[start : start + SNIPPET].split()), hits))
        best.sort(key=lambda passage: -passage.words)
        del best[LIMIT:]
    return best


def _text(message: dict[str, object]) -> str:
    parts = [str(message.get("content") or ""), str(message.get("reasoning_content") or "")]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        parts += [f"{call['function']['name']} {call['function']['arguments']}" for call in calls]
    return "\n".join(part for part in parts if part)
