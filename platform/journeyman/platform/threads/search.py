"""Searching everything that was said and done in a task, also what no model sees any more.

Words count the more, the fewer messages hold them: that a question begins with "where is" says nothing. A message is
judged by its best passage, not by all it holds, so that a long output full of common words does not win.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.threads.models import Message, Thread

LIMIT: Final = 8
SNIPPET: Final = 600
"""Characters of a passage."""
MAX_MESSAGES: Final = 20_000
CANDIDATES: Final = 60
"""Messages with the rarest words, whose passages are compared."""

ANSWER_HEADING: Final = "Said and done in this task:"
"""First line of what ``recall`` answers, by which earlier answers are left out: they would find themselves again."""

_WORD: Final = re.compile(r"\w{3,}")
_ENDINGS: Final = ("ing", "ies", "ed", "es", "s", "e", "y")
_SHORTEST_STEM: Final = 4


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a message: of which role's thread, its place there, and the text around what was looked for."""

    role: str
    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    role: str
    message_id: str
    seq: int
    age: int
    words: frozenset[str]


async def search_task(session: AsyncSession, task_id: str, query: str) -> list[Passage]:
    """The passages that hold the query's rarest words closest together, the best first; at most ``LIMIT``."""
    words = {_stem(word.lower()) for word in _WORD.findall(query)}
    if not words:
        return []
    candidates, weights = await _candidates(session, task_id, words)
    bodies = await _bodies(session, [candidate.message_id for candidate in candidates])
    found: list[tuple[float, int, Passage]] = []
    for candidate in candidates:
        text = _text(json.loads(bodies[candidate.message_id]))
        score, start = _best_window(text.lower(), candidate.words, weights)
        passage = Passage(candidate.role, candidate.seq, " ".join(text[start : start + SNIPPET].split()))
        found.append((score, -candidate.age, passage))
    found.sort(key=lambda item: item[:2], reverse=True)
    return _different([passage for _, _, passage in found])


async def _candidates(
    session: AsyncSession, task_id: str, words: set[str]
) -> tuple[list[_Candidate], dict[str, float]]:
    """The messages with the heaviest words, and what each word weighs: the logarithm of how rare it is."""
    rows = await session.stream(
        sa.select(Thread.role, Message.id, Message.seq, Message.step_key, Message.body)
        .join(Thread, Thread.id == Message.thread_id)
        .where(Message.task_id == task_id, Message.seq > 1, Thread.superseded_at.is_(None))
        .order_by(Message.created_at.desc(), Message.seq.desc())
        .limit(MAX_MESSAGES)
        .execution_options(yield_per=200)
    )
    holding: list[_Candidate] = []
    spread: Counter[str] = Counter()
    total = 0
    async for role, message_id, seq, step_key, body in rows:
        if ":segment:" in step_key and not step_key.endswith(":summary"):
            continue  # what a new segment repeats of what was said before it
        total += 1
        lowered = _text(json.loads(body)).lower()
        held = frozenset(word for word in words if word in lowered)
        if held:
            spread.update(held)
            holding.append(_Candidate(role, message_id, seq, total, held))
    weights = {word: math.log(1 + total / spread[word]) for word in spread}
    holding.sort(key=lambda candidate: (-sum(weights[word] for word in candidate.words), candidate.age))
    return holding[:CANDIDATES], weights


async def _bodies(session: AsyncSession, ids: Sequence[str]) -> dict[str, bytes]:
    rows = await session.execute(sa.select(Message.id, Message.body).where(Message.id.in_(ids)))
    return {row.id: row.body for row in rows}


def _best_window(lowered: str, words: frozenset[str], weights: dict[str, float]) -> tuple[float, int]:
    """Weight of the words in the best ``SNIPPET`` characters, and where these begin: a little before the first word."""
    places = sorted((match.start(), word) for word in words for match in re.finditer(re.escape(word), lowered))
    best, best_start, first = 0.0, 0, 0
    inside: Counter[str] = Counter()
    for place, word in places:
        inside[word] += 1
        while place - places[first][0] > SNIPPET * 2 // 3:
            inside[places[first][1]] -= 1
            first += 1
        score = sum(weights[held] for held, count in inside.items() if count)
        if score > best:
            best, best_start = score, places[first][0]
    return best, max(0, best_start - SNIPPET // 6)


def _different(passages: Sequence[Passage]) -> list[Passage]:
    """The first ``LIMIT`` whose texts differ."""
    kept = {passage.text: passage for passage in reversed(passages)}
    return [passage for passage in passages if kept.get(passage.text) is passage][:LIMIT]


def _stem(word: str) -> str:
    """The word without a common ending, so that ``ports`` finds ``port``: what is left is looked for inside words."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word[: -len(ending)]
    return word


def _text(message: dict[str, object]) -> str:
    """What can be found of a message. Earlier questions to ``recall`` and its answers cannot."""
    content = str(message.get("content") or "")
    parts = [str(message.get("reasoning_content") or "")]
    if not (message.get("role") == "tool" and content.startswith(ANSWER_HEADING)):
        parts.insert(0, content)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        parts += [
            f"{call['function']['name']} {call['function']['arguments']}"
            for call in calls
            if call["function"]["name"] != "recall"
        ]
    return "\n".join(part for part in parts if part)
