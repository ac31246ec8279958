"""Long-term memory of a project: written after work, asked before it. Rows are the truth, vectors an index over them."""

import asyncio
import hashlib
from collections.abc import Collection, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import InvalidInput, Unavailable
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.metrics import MEMORY_RECALLS
from journeyman.platform.kit.redaction import holds_secret, redact_text
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.text import cleaned
from journeyman.platform.memory import repository
from journeyman.platform.memory.embedder import OpenAIEmbedder
from journeyman.platform.memory.indexing import MemoryIndex
from journeyman.platform.memory.models import Kind, Memory, Origin
from journeyman.platform.memory.port import Embedder, Match, VectorMemory
from journeyman.platform.memory.qdrant import QdrantVectorMemory
from journeyman.platform.memory.ranking import Candidate, best
from journeyman.platform.memory.verification import names_verification
from journeyman.platform.tasks.contract import TaskState
from journeyman.platform.tasks.repository import lock_task

COLLECTION: Final = "journeyman_memories"

MIN_SCORE: Final = 0.78
"""Cosine similarity below which a memory does not fit: multilingual-e5 scores unrelated sentences around 0.7 to 0.81, and
what answers a question 0.82 to 0.90 (``benchmarks/memory.py``)."""

MAX_QUERY: Final = 2000
RECALL_S: Final = 2.0
"""Seconds that a recall waits for embedder and index; then it searches the rows by their words. A step is not held up longer."""
MAX_LESSONS: Final = 10
DEGRADED: Final = (
    "The memory index did not answer in time: the project's memory was searched by words alone, and more may be known."
)
"""What an agent is told of a degraded recall."""

_CANDIDATES: Final = 4
"""How many times more are ranked than are asked for."""

_UNSUCCESSFUL: Final = frozenset({TaskState.FAILED, TaskState.ERRORED, TaskState.CANCELLED})

_log = get_logger(__name__)


@dataclass(frozen=True)
class Recalled:
    """``score`` is the cosine similarity, ``rank`` what it was sorted by: see :mod:`journeyman.platform.memory.ranking`."""

    memory: Memory
    score: float
    rank: float

    @property
    def id(self) -> str:
        return self.memory.id

    @property
    def text(self) -> str:
        return self.memory.text

    @property
    def described(self) -> str:
        """The text with who says so, for an agent that has to judge it."""
        if self.memory.of_person:
            return f"{self.memory.text} (from a person)"
        return f"{self.memory.text} (from task {self.memory.task_id})"


@dataclass(frozen=True)
class Recollection:
    """``degraded``: embedder or index did not answer in time, so the memories were found by their words alone.

    ``reason`` is then ``slow`` (no answer within ``RECALL_S``) or ``down``.
    """

    memories: tuple[Recalled, ...]
    degraded: bool = False
    reason: Literal["slow", "down"] | None = None

    @property
    def facts(self) -> dict[str, object]:
        """For the event that tells of it."""
        return {
            "memories": [
                {"id": found.id, "score": round(found.score, 4), "rank": round(found.rank, 4)}
                for found in self.memories
            ],
            "degraded": self.degraded,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Learner:
    """Who writes a memory in a task. The same ``step_key`` writes once."""

    project_id: str
    task_id: str
    step_key: str
    thread_id: str | None = None
    subtask_id: str | None = None
    origin: Origin = "agent"


@dataclass(frozen=True, slots=True)
class Learned:
    """What came of writing a memory.

    ``written``: there is a new one. ``confirmed``: the project knew it; it counts for more now. ``outranked``: a person has
    corrected it since, and the correction stands (``instead`` is its text).
    """

    memory_id: str
    outcome: Literal["written", "confirmed", "outranked"]
    instead: str | None = None


async def learn(session: AsyncSession, learner: Learner, text: str, kind: Kind) -> Learned:
    """Keep what a task has learnt, with the event that tells of it; once per step key. It is found once indexed.

    Raises :class:`InvalidInput` with code ``looks_like_a_secret``; ``holds_verification`` for a text that names what an
    acceptance command of the task names; ``verification_failed`` from the task's first failed verification on; or
    ``memory_off`` where task or project do not let memories be written.
    """
    text = cleaned(text)
    refuse_secret(text)
    task = await lock_task(session, learner.task_id)
    earlier = await repository.event_data(session, step_keys.part(learner.step_key, "memory"))
    if earlier is not None:
        return Learned(earlier["memory_id"], earlier["outcome"], earlier.get("instead"))
    if not (await repository.memory_use(session, task)).write:
        raise InvalidInput("Not kept: memory is switched off for this task.", code="memory_off")
    verification = await repository.verification_of(session, task)
    if verification.failed:
        raise InvalidInput(
            "Not kept: this task's verification has failed before, and nothing that may derive from that is remembered. "
            "Go on without; what was remembered before stays.",
            code="verification_failed",
        )
    if names_verification(text, verification.commands):
        raise InvalidInput(
            "Not kept: the text holds an acceptance command, or names a file or test that one names, and later tasks must "
            "not learn how work is verified. Leave that part out.",
            code="holds_verification",
        )
    learned, confirmations = await _store(session, learner, text, kind)
    event = await append(
        session,
        learner.task_id,
        EventType.MEMORY_WRITTEN,
        {
            "memory_id": learned.memory_id,
            "kind": kind,
            "text": text,
            "outcome": learned.outcome,
            "confirmations": confirmations,
            **({} if learned.instead is None else {"instead": learned.instead}),
        },
        thread_id=learner.thread_id,
        subtask_id=learner.subtask_id,
        step_key=step_keys.part(learner.step_key, "memory"),
    )
    if learned.outcome == "written":
        await repository.note_source(session, learned.memory_id, event.id)
    elif learned.outcome == "confirmed":
        known = await repository.get(session, learner.project_id, learned.memory_id)
        assert known is not None
        await repository.note_change(session, known, "confirmed", event_id=event.id)
    return learned


async def reflect(session: AsyncSession, project_id: str, task_id: str, lessons: Sequence[tuple[Kind, str]]) -> int:
    """Keep what a task that has ended taught, at most ``MAX_LESSONS``; once per task. Returns how many were kept.

    The task's log is closed by then, so no event tells of it: the memories name the task. Secrets and texts that name what
    an acceptance command names are left out. A task whose verification ever failed keeps nothing.
    """
    task = await lock_task(session, task_id)
    if task.reflected_at is not None:
        return 0
    task.reflected_at = now()
    if not (await repository.memory_use(session, task)).write:
        return 0
    verification = await repository.verification_of(session, task)
    if verification.failed:
        return 0
    kept = 0
    for number, (kind, said) in enumerate(lessons[:MAX_LESSONS]):
        text = redact_text(cleaned(said))
        if holds_secret(text) or names_verification(text, verification.commands):
            continue
        learner = Learner(project_id, task_id, step_keys.part(task_id, "lesson", number), origin="platform")
        learned, _ = await _store(session, learner, text, kind)
        if learned.outcome == "confirmed":
            known = await repository.get(session, project_id, learned.memory_id)
            assert known is not None
            await repository.note_change(session, known, "confirmed")
        kept += learned.outcome != "outranked"
    await repository.notify(session, project_id)
    return kept


async def _store(session: AsyncSession, learner: Learner, text: str, kind: Kind) -> tuple[Learned, int]:
    digest = text_digest(text)
    await repository.lock_text(session, learner.project_id, digest)
    if await repository.same_text(session, learner.project_id, digest) is None:
        head = await repository.head_of_superseded(session, learner.project_id, digest)
        if head is not None and head.of_person:
            return Learned(head.id, "outranked", head.text), head.confirmations
        if head is not None:
            repository.confirm(head)
            return Learned(head.id, "confirmed"), head.confirmations
    stored = await repository.add_or_confirm(
        session,
        {
            "id": derived_id("memory", learner.project_id, learner.step_key),
            "project_id": learner.project_id,
            "task_id": learner.task_id,
            "kind": kind,
            "text": text,
            "step_key": learner.step_key,
            "origin": learner.origin,
            "digest": digest,
        },
    )
    return Learned(stored.id, "written" if stored.new else "confirmed"), stored.confirmations


def refuse_secret(text: str) -> None:
    """Raises :class:`InvalidInput`: what is remembered is shown to every later task of the project."""
    if holds_secret(text):
        message = (
            "holds what looks like a key, a token or a password, and a memory is shown to every later task of the project. "
            "Say where the secret is kept or what it is called instead of writing it down."
        )
        raise InvalidInput(
            f"Not kept: the text {message}",
            code="looks_like_a_secret",
            errors=[{"field": "text", "message": message}],
        )


def text_digest(text: str) -> str:
    """SHA-256 of the text without differences of case and white space."""
    return hashlib.sha256(" ".join(text.lower().split()).encode("utf-8", "replace")).hexdigest()


class MemoryService:
    """Finding memories, and having the index follow what was written."""

    def __init__(self, database: Database, vectors: VectorMemory, embedder: Embedder) -> None:
        self._database = database
        self._vectors = vectors
        self._embedder = embedder
        self.index = MemoryIndex(database, vectors, embedder)
        self._background: set[asyncio.Task[None]] = set()

    async def try_to_index(self, project_id: str) -> bool:
        """Index what is not indexed yet. False when the index is down: the rows are kept, and indexed once it is back."""
        try:
            await self.index.follow(project_id=project_id)
        except Unavailable:
            return False
        return True

    async def recall(self, project_id: str, query: str, *, limit: int = 5, kinds: Collection[str] = ()) -> Recollection:
        """What the project knows that fits the query, best first; only what counts, neither deleted nor superseded."""
        query = query.strip()[:MAX_QUERY]
        try:
            async with asyncio.timeout(RECALL_S):
                matches = await self._matches(project_id, query, max(20, _CANDIDATES * limit))
        except (Unavailable, TimeoutError) as error:
            reason: Literal["slow", "down"] = "slow" if isinstance(error, TimeoutError) else "down"
            MEMORY_RECALLS.labels(reason).inc()
            return await self._by_words(project_id, query, limit, kinds, reason)
        MEMORY_RECALLS.labels("index").inc()
        async with self._database.transaction() as session:
            rows = await repository.rows_of(session, project_id, {str(match.payload["memory_id"]) for match in matches})
        candidates: list[Candidate] = []
        stale: list[str] = []
        for match in matches:
            memory, task_state = rows.get(str(match.payload["memory_id"]), (None, None))
            if memory is None or not memory.live or memory.revision != match.payload["revision"]:
                stale.append(match.id)
            elif not kinds or memory.kind in kinds:
                candidates.append(_candidate(memory, task_state, match.score))
        if stale:
            # No row stands behind these any more, and none will: whoever was to remove them has died or is behind.
            self._soon(self._vectors.delete(project_id, stale))
        return Recollection(
            tuple(
                Recalled(rows[found.candidate.id].memory, found.candidate.similarity, found.rank)
                for found in best(candidates, now(), limit)
            )
        )

    async def _by_words(
        self, project_id: str, query: str, limit: int, kinds: Collection[str], reason: Literal["slow", "down"]
    ) -> Recollection:
        """What PostgreSQL's full text search finds in the rows. Scores are on the scale of similarities, from ``MIN_SCORE``."""
        async with self._database.transaction() as session:
            rows = await repository.search_text(session, project_id, query, kinds, limit=max(20, _CANDIDATES * limit))
        memories = {memory.id: memory for memory, _, _ in rows}
        candidates = [_candidate(memory, state, MIN_SCORE + score / 10) for memory, state, score in rows]
        found = tuple(
            Recalled(memories[each.candidate.id], each.candidate.similarity, each.rank)
            for each in best(candidates, now(), limit)
        )
        return Recollection(found, degraded=True, reason=reason)

    async def _matches(self, project_id: str, query: str, limit: int) -> list[Match]:
        await self.index.prepare()
        with self.index.health.of("embedder"):
            vector = await self._embedder.embed_query(query, project_id=project_id)
        with self.index.health.of("index"):
            return await self._vectors.search(project_id, vector, limit=limit, min_score=MIN_SCORE)

    def used(self, recollection: Recollection) -> None:
        """Count that these were shown to an agent. Nobody waits for it, and a crash may lose it."""
        if recollection.memories:
            self._soon(self._count([found.id for found in recollection.memories]))

    async def _count(self, ids: Sequence[str]) -> None:
        async with self._database.transaction() as session:
            await repository.count_uses(session, ids)

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._quietly(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    @staticmethod
    async def _quietly(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  nobody waits for it, and nothing depends on it
            _log.info("memory.afterwork_failed", error=str(error)[:200])

    async def settled(self) -> None:
        """Wait for what nobody waits for; before the database and the index are closed."""
        await asyncio.gather(*self._background)


def _candidate(memory: Memory, task_state: str | None, score: float) -> Candidate:
    vouched = memory.of_person or memory.confirmations > 0
    return Candidate(
        id=memory.id,
        text=memory.text,
        similarity=score,
        said_at=memory.edited_at or memory.created_at,
        alive_at=max(memory.updated_at, memory.last_used_at or memory.updated_at),
        confirmations=memory.confirmations,
        uses=memory.uses,
        of_person=memory.of_person,
        doubtful=task_state in _UNSUCCESSFUL and not vouched,
    )


def memory_service(settings: Settings, database: Database, stack: AsyncExitStack) -> MemoryService:
    """The service on Qdrant and the gateway's embeddings. Connects at the first call; closed with the stack."""
    embedder = OpenAIEmbedder(
        f"{settings.gateway_url.rstrip('/')}/v1",
        settings.internal_secret.get_secret_value(),
        settings.embedding_model,
    )
    vectors = QdrantVectorMemory(settings.qdrant_url, COLLECTION, settings.embedding_dimensions)
    service = MemoryService(database, vectors, embedder)
    stack.push_async_callback(vectors.close)
    stack.push_async_callback(embedder.close)
    stack.push_async_callback(service.settled)
    return service
