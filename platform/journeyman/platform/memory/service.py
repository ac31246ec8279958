"""Long-term memory of a project: written after work, asked before it. Rows are the truth, vectors an index over them."""

import hashlib
import logging
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.memory.models import Memory
from journeyman.platform.memory.port import Embedder, Point, VectorMemory

logger = logging.getLogger(__name__)

MIN_SCORE: Final = 0.78
"""Cosine similarity below which a memory does not fit: multilingual-e5 scores unrelated sentences around 0.7 to 0.78."""

_INDEX_BATCH: Final = 32


@dataclass(frozen=True)
class Recalled:
    id: str
    kind: str
    text: str
    score: float
    task_id: str | None
    source_event_id: str | None


@dataclass(frozen=True)
class Recollection:
    """``degraded``: the index did not answer, so that nothing could be found, whatever is stored."""

    memories: tuple[Recalled, ...]
    degraded: bool = False


def memory_id(project_id: str, step_key: str) -> str:
    """The id of the memory that a step writes."""
    return derived_id("memory", project_id, step_key)


async def write_memory(
    session: AsyncSession,
    project_id: str,
    text: str,
    *,
    kind: str,
    step_key: str,
    task_id: str | None,
    source_event_id: str | None,
    origin: str = "agent",
) -> None:
    """Store a memory, once per step key, in the transaction of the event that tells of it. It is found once indexed."""
    await session.execute(
        insert(Memory)
        .values(
            id=memory_id(project_id, step_key),
            project_id=project_id,
            task_id=task_id,
            source_event_id=source_event_id,
            kind=kind,
            text=text.replace("\x00", "\u2400"),
            step_key=step_key,
            origin=origin,
            digest=text_digest(text),
            confirmations=0,
            uses=0,
        )
        .on_conflict_do_nothing()
    )


def text_digest(text: str) -> str:
    """SHA-256 of the text without differences of case and white space."""
    return hashlib.sha256(" ".join(text.lower().split()).encode("utf-8", "replace")).hexdigest()


class MemoryService:
    def __init__(self, database: Database, vectors: VectorMemory, embedder: Embedder) -> None:
        self._database = database
        self._vectors = vectors
        self._embedder = embedder

    async def try_to_index(self, project_id: str) -> bool:
        """Index what is not indexed yet. False when the index is down: the rows are kept and indexed at the next time."""
        try:
            await self.index(project_id)
        except Unavailable as error:
            logger.warning("memory index unavailable: %s", error)
            return False
        return True

    async def index(self, project_id: str) -> int:
        """Put the project's rows that have no vector yet into the index; returns how many. Repeating it does no harm."""
        total = 0
        while True:
            async with self._database.transaction() as session:
                rows = list(
                    await session.scalars(
                        sa.select(Memory)
                        .where(Memory.project_id == project_id, Memory.indexed_at.is_(None))
                        .order_by(Memory.created_at)
                        .limit(_INDEX_BATCH)
                    )
                )
            if not rows:
                return total
            vectors = await self._embedder.embed_passages([row.text for row in rows], project_id=project_id)
            await self._vectors.ensure_collection()
            await self._vectors.upsert(
                [
                    Point(
                        id=row.id.removeprefix("mem_"),
                        vector=vector,
                        project_id=project_id,
                        payload={"memory_id": row.id},
                    )
                    for row, vector in zip(rows, vectors, strict=True)
                ]
            )
            async with self._database.transaction() as session:
                await session.execute(
                    sa.update(Memory).where(Memory.id.in_([row.id for row in rows])).values(indexed_at=now())
                )
            total += len(rows)

    async def recall(self, project_id: str, query: str, *, limit: int = 5) -> Recollection:
        """What the project knows that fits the query, best first."""
        try:
            await self._vectors.ensure_collection()
            vector = await self._embedder.embed_query(query[:2000], project_id=project_id)
            matches = await self._vectors.search(project_id, vector, limit=limit, min_score=MIN_SCORE)
        except Unavailable as error:
            logger.warning("memory index unavailable: %s", error)
            return Recollection((), degraded=True)
        scores = {str(match.payload["memory_id"]): match.score for match in matches}
        async with self._database.transaction() as session:
            rows = await session.scalars(
                sa.select(Memory).where(Memory.project_id == project_id, Memory.id.in_(list(scores)))
            )
            found = [
                Recalled(row.id, row.kind, row.text, scores[row.id], row.task_id, row.source_event_id) for row in rows
            ]
        return Recollection(tuple(sorted(found, key=lambda memory: -memory.score)))
