"""The Qdrant driver of vector memory, for a Qdrant server and for the embedded stack's vectors server alike.

A project's points are told apart twice: every filter names the project, and a point's id in Qdrant is derived from
project and id together, so that no write of one project can meet a point of another.

The client library is loaded at the first call: it takes most of a second, which a process that starts should not wait for.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from journeyman.platform.kit.errors import InvalidInput, Unavailable
from journeyman.platform.memory.port import Match, Point

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient, models

T = TypeVar("T")

_NAMESPACE: Final = uuid.UUID("6f0d6c1e-3a55-4a5e-9d0c-5b8f4a1f7c11")
_PROJECT: Final = "project_id"
_ID: Final = "point_id"
_DATA: Final = "data"
_BATCH: Final = 64


class QdrantVectorMemory:
    """Vectors of one length in one collection, compared by cosine.

    ``url`` may carry an API key as its password: ``https://:key@qdrant.example:6333``.
    """

    def __init__(self, url: str, collection: str, dimensions: int, *, timeout_s: int = 10) -> None:
        self._address, self._key = _split_key(url)
        self._collection = collection
        self._dimensions = dimensions
        self._timeout_s = timeout_s
        self._client: AsyncQdrantClient | None = None
        self._ensured = False
        self._ensuring = asyncio.Lock()

    async def exists(self) -> bool:
        client = await self._connected()
        there = await self._call(client.collection_exists(self._collection))
        self._ensured = self._ensured and there
        return there

    async def ensure_collection(self) -> None:
        if self._ensured:
            return
        async with self._ensuring:
            client = await self._connected()
            from qdrant_client import models

            if not await self._call(client.collection_exists(self._collection)):
                await self._create()
            info = await self._call(client.get_collection(self._collection))
            vectors = info.config.params.vectors
            if not isinstance(vectors, models.VectorParams) or vectors.size != self._dimensions:
                raise Unavailable(
                    f"The collection {self._collection} was made for vectors of another length than {self._dimensions}. "
                    "Set JOURNEYMAN_EMBEDDING_DIMENSIONS back, or have the memories indexed anew in another collection.",
                    retryable=False,
                )
            # Again by each process: whoever made the collection may have died before this.
            await self._call(
                client.create_payload_index(
                    self._collection,
                    _PROJECT,
                    models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
                    wait=True,
                )
            )
            self._ensured = True

    async def _create(self) -> None:
        from qdrant_client import models

        client = await self._connected()
        try:
            await self._call(
                client.create_collection(
                    self._collection,
                    vectors_config=models.VectorParams(size=self._dimensions, distance=models.Distance.COSINE),
                )
            )
        except Unavailable:
            # Another process may have been quicker; only then is the failure none.
            if not await self._call(client.collection_exists(self._collection)):
                raise

    async def upsert(self, points: Sequence[Point]) -> None:
        client = await self._connected()
        structures = [self._structure(point) for point in points]
        for start in range(0, len(structures), _BATCH):
            await self._call(client.upsert(self._collection, structures[start : start + _BATCH], wait=True))

    def _structure(self, point: Point) -> "models.PointStruct":
        from qdrant_client import models

        self._check_vector(point.vector)
        own = _uuid(point.id)
        return models.PointStruct(
            id=_stored_id(point.project_id, own),
            vector=[float(value) for value in point.vector],
            payload={_PROJECT: point.project_id, _ID: str(own), _DATA: dict(point.payload)},
        )

    async def search(self, project_id: str, vector: Sequence[float], limit: int, min_score: float) -> list[Match]:
        self._check_vector(vector)
        if limit <= 0:
            return []
        client = await self._connected()
        from qdrant_client import models

        answer = await self._call(
            client.query_points(
                self._collection,
                query=[float(value) for value in vector],
                query_filter=models.Filter(must=[_of_project(project_id)]),
                limit=limit,
                score_threshold=min_score,
                with_payload=True,
            )
        )
        matches: list[Match] = []
        for point in answer.points:
            payload = point.payload or {}
            if payload.get(_PROJECT) == project_id:
                matches.append(Match(str(payload[_ID]), point.score, dict(payload[_DATA])))
        return matches

    async def delete(self, project_id: str, ids: Sequence[str]) -> None:
        if not ids:
            return
        client = await self._connected()
        from qdrant_client import models

        stored: list[models.ExtendedPointId] = [_stored_id(project_id, _uuid(own)) for own in ids]
        selected = models.Filter(must=[_of_project(project_id), models.HasIdCondition(has_id=stored)])
        await self._call(client.delete(self._collection, models.FilterSelector(filter=selected), wait=True))

    async def check(self) -> None:
        client = await self._connected()
        await self._call(client.collection_exists(self._collection))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> "AsyncQdrantClient":
        if self._client is None:
            await asyncio.to_thread(import_module, "qdrant_client")
        # Another caller may have been quicker while the library was loaded; from here on nothing waits.
        if self._client is None:
            from qdrant_client import AsyncQdrantClient

            self._client = AsyncQdrantClient(
                url=self._address,
                # As a header and not as the client's own option, which warns of plain HTTP even on loopback.
                headers={"api-key": self._key} if self._key else None,
                timeout=self._timeout_s,
                check_compatibility=False,
                # What HTTP_PROXY says is meant for the world outside.
                trust_env=False,
            )
        return self._client

    def _check_vector(self, vector: Sequence[float]) -> None:
        if len(vector) != self._dimensions:
            raise InvalidInput(
                f"The vector has {len(vector)} numbers; this memory holds vectors of {self._dimensions}."
            )

    async def _call(self, call: Awaitable[T]) -> T:
        from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

        try:
            return await call
        except UnexpectedResponse as error:
            if error.status_code == 404:
                self._ensured = False
            raise Unavailable(
                f"The vector memory refused a request ({error.status_code}); memories are not found until it works again.",
                retryable=error.status_code not in {400, 401, 403, 422},
            ) from error
        except (ApiException, OSError) as error:
            raise Unavailable("The vector memory does not answer; the request is tried again.") from error


def _of_project(project_id: str) -> "models.FieldCondition":
    from qdrant_client import models

    return models.FieldCondition(key=_PROJECT, match=models.MatchValue(value=project_id))


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise InvalidInput(f"{text[:100]!r} is not a UUID, which ids of memory points are.") from None


def _stored_id(project_id: str, own: uuid.UUID) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{project_id}/{own}"))


def _split_key(url: str) -> tuple[str, str | None]:
    """The address without user and password, and the password."""
    parts = urlsplit(url)
    key = unquote(parts.password) if parts.password else None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), key
