"""The index follows the rows: whatever was written, edited, superseded or deleted, whichever process saw it and died.

A row that is ahead of the index says so itself (``index_due_at``). Whoever writes one tries to index it at once; what that
leaves behind, because the index or the embedder was down, is swept up by every API process. Several at once do no harm:

* a claim gives a row to one of them;
* every revision of a memory has a point of its own, so that a slow writer cannot put an old text's vector over a new one's;
* what is found is checked against the row: a vector that was left behind finds nothing, and is removed.
"""

import asyncio
import hashlib
import uuid
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Final

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import InvalidInput, Unavailable
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.metrics import MEMORY_UNINDEXED
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.memory import index_repository, repository
from journeyman.platform.memory.health import Health
from journeyman.platform.memory.index_repository import Due
from journeyman.platform.memory.port import Embedder, Point, VectorMemory
from journeyman.platform.memory.wording import repeats

REPEATED: Final = 0.95
"""Cosine from which two memories may say the same; whether they do is for the wording to tell. Measured with
multilingual-e5-small by ``benchmarks/memory.py``: lightly reworded texts have 0.963 and more."""

BATCH: Final = 32
LEASE: Final = timedelta(minutes=2)
GRACE: Final = timedelta(seconds=2)
"""The sweep leaves younger rows to their writers."""
RETRY: Final = timedelta(seconds=2)
RETRY_REFUSED: Final = timedelta(minutes=10)
POLL_EVERY: Final = 2.0
CHECK_EVERY: Final = 10.0
_NEIGHBOURS: Final = 5

_log = get_logger(__name__)


def point_id(memory_id: str, revision: int) -> str:
    """The id of the vector of one revision."""
    return str(uuid.UUID(hashlib.sha256(f"{memory_id}\x1f{revision}".encode()).hexdigest()[:32]))


class MemoryIndex:
    """Keeps Qdrant in step with the rows. Any number of processes may do so at once."""

    def __init__(self, database: Database, vectors: VectorMemory, embedder: Embedder) -> None:
        self._database = database
        self._vectors = vectors
        self._embedder = embedder
        self._wake = asyncio.Event()
        self._hurried = False
        self._prepared = False
        self.health = Health()
        self._checked_at = 0.0

    def notified(self, _payload: str | None) -> None:
        """Somebody changed a memory and leaves the index to the sweep."""
        self._hurried = True
        self._wake.set()

    async def run(self) -> None:
        """Sweep until cancelled. Survives the loss of PostgreSQL, Qdrant and the embedder."""
        while True:
            self._wake.clear()
            grace, self._hurried = timedelta() if self._hurried else GRACE, False
            found = 0
            try:
                await self._look()
                found = await self.follow(grace=grace, limit=BATCH)
            except Unavailable:
                pass  # said by ``health``; the rows are due again
            except Exception as error:  # noqa: BLE001
                # Whatever it was, the rows say what is left to do; a sweep that stops would leave it undone.
                if database_unavailable(error):
                    _log.warning("memory.database_unavailable", error=str(error)[:200])
                else:
                    _log.error("memory.sweep_failed", exc_info=error)
            if found < BATCH:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_EVERY):
                        await self._wake.wait()

    async def _look(self) -> None:
        """Whether the index answers although nobody needs it, so that its loss shows before it is felt."""
        moment = asyncio.get_running_loop().time()
        if moment - self._checked_at >= CHECK_EVERY:
            self._checked_at = moment
            with suppress(Unavailable):
                await self.prepare(certain=False)
        async with self._database.transaction() as session:
            MEMORY_UNINDEXED.set(await index_repository.unindexed(session))

    async def prepare(self, *, certain: bool = True) -> None:
        """Make the index when it is absent, be it for the first time or because its storage was lost.

        Repeating it is free, unless the index is asked (``certain=False``) whether it is still there. Raises
        :class:`Unavailable`.
        """
        if self._prepared and certain:
            return
        self._prepared = False
        with self.health.of("index"):
            if not await self._vectors.exists():
                # First the rows, then the index: whoever dies in between leaves an absent one, and the next begins anew.
                async with self._database.transaction() as session:
                    await index_repository.index_all(session)
            await self._vectors.ensure_collection()
        self._prepared = True

    async def follow(
        self, *, project_id: str | None = None, grace: timedelta = timedelta(), limit: int | None = None
    ) -> int:
        """Bring the index up to date with what is due (of one project); returns how many rows that were.

        Raises :class:`Unavailable` when the index or the embedder does not answer; the rows stay due.
        """
        total = 0
        # With the index asked before texts are embedded, which is in vain while it is down.
        await self.prepare(certain=False)
        while limit is None or total < limit:
            async with self._database.transaction() as session:
                dues = await index_repository.claim_due(
                    session, project_id=project_id, grace=grace, lease=LEASE, limit=BATCH
                )
            if not dues:
                break
            try:
                await self._follow_each_project(dues)
            except Unavailable:
                async with self._database.transaction() as session:
                    await index_repository.postpone(session, dues, by=RETRY)
                raise
            total += len(dues)
        return total

    async def _follow_each_project(self, dues: Sequence[Due]) -> None:
        by_project: dict[str, list[Due]] = defaultdict(list)
        for due in dues:
            by_project[due.project_id].append(due)
        for project_id, own in by_project.items():
            with self.health.of("index"):
                await self._remove(project_id, [due for due in own if not due.live])
            await self._write(project_id, [due for due in own if due.live])

    async def _remove(self, project_id: str, dues: Sequence[Due]) -> None:
        if not dues:
            return
        ids = [point_id(due.id, revision) for due in dues for revision in range(1, due.revision + 1)]
        await self._vectors.delete(project_id, ids)
        async with self._database.transaction() as session:
            for due in dues:
                await index_repository.settle(session, due)

    async def _write(self, project_id: str, dues: Sequence[Due]) -> None:
        if not dues:
            return
        try:
            with self.health.of("embedder"):
                vectors = await self._embedder.embed_passages([due.text for due in dues], project_id=project_id)
            points = [
                Point(
                    id=point_id(due.id, due.revision),
                    vector=vector,
                    project_id=project_id,
                    payload={"memory_id": due.id, "revision": due.revision},
                )
                for due, vector in zip(dues, vectors, strict=True)
            ]
            with self.health.of("index"):
                await self._vectors.upsert(points)
        except (Unavailable, InvalidInput) as error:
            if error.retryable:
                raise
            await self._refused(project_id, dues, error)
            return
        with self.health.of("index"):
            for due, point in zip(dues, points, strict=True):
                # Only now: of two that say the same and come at once, the later one sees the other.
                await self._fold(due, point)
                async with self._database.transaction() as session:
                    settled = await index_repository.settle(session, due)
                stale = range(1, due.revision if settled else due.revision + 1)
                await self._vectors.delete(project_id, [point_id(due.id, revision) for revision in stale])

    async def _refused(self, project_id: str, dues: Sequence[Due], error: Exception) -> None:
        """Let one text that is refused hold up no other."""
        if len(dues) > 1:
            for due in dues:
                await self._write(project_id, [due])
            return
        _log.error("memory.refused", memory_id=dues[0].id, error=str(error))
        async with self._database.transaction() as session:
            await index_repository.postpone(session, dues, by=RETRY_REFUSED)

    async def _fold(self, due: Due, point: Point) -> None:
        """Of memories that say the same in slightly other words let the newest count, or the one that a person wrote."""
        matches = await self._vectors.search(point.project_id, point.vector, limit=_NEIGHBOURS, min_score=REPEATED)
        ids = {str(match.payload["memory_id"]) for match in matches}
        if ids <= {due.id}:
            return
        async with self._database.transaction() as session:
            rows = await repository.lock(session, point.project_id, ids | {due.id})
            same = [
                row
                for row in rows.values()
                if row.live and row.kind == due.kind and (row.id == due.id or repeats(row.text, due.text))
            ]
            if not any(row.id == due.id and row.revision == due.revision for row in same):
                return
            same.sort(key=lambda row: (row.of_person, row.created_at, row.id))
            for older, newer in pairwise(same):
                if older.of_person:
                    continue  # Two of a person's own: that is for the person to decide.
                await repository.note_change(session, older, "superseded", other_id=newer.id)
                older.superseded_by = newer.id
                newer.confirmations += older.confirmations + 1
                newer.updated_at = now()
                repository.touch(older)
