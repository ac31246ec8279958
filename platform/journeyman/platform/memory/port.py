"""Vector memory and embeddings: the ports.

Drivers: :class:`journeyman.platform.memory.qdrant.QdrantVectorMemory`,
:class:`journeyman.platform.memory.embedder.OpenAIEmbedder`. Every driver passes
``tests/platform/memory/test_vector_memory.py`` and ``tests/platform/memory/test_embedder.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Point:
    """A vector with its owner. ``id`` is a UUID in any of its textual forms; the same id again replaces the point."""

    id: str
    vector: Sequence[float]
    project_id: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able; given back with matches. The key ``project_id`` belongs to the driver."""


@dataclass(frozen=True, slots=True)
class Match:
    """A point that was found. ``id`` has the hyphenated form, ``score`` is the cosine similarity, -1 to 1."""

    id: str
    score: float
    payload: dict[str, Any]


class VectorMemory(Protocol):
    """All calls raise :class:`journeyman.platform.kit.errors.Unavailable` while the index does not answer.

    No call finds, changes or deletes a point of another project than the one it names. Ids are each project's own: the
    same id in two projects names two points.
    """

    async def exists(self) -> bool:
        """Whether the index is there. False before it is first made, and when its storage was lost with all points."""
        ...

    async def ensure_collection(self) -> None:
        """Create what the index needs when it is absent; callable any number of times, from several processes at once."""
        ...

    async def upsert(self, points: Sequence[Point]) -> None:
        """Write the points; searchable and durable when this returns.

        Raises :class:`journeyman.platform.kit.errors.InvalidInput` for an id that is no UUID or a vector of another length.
        """
        ...

    async def search(self, project_id: str, vector: Sequence[float], limit: int, min_score: float) -> list[Match]:
        """At most ``limit`` points of the project with at least that similarity, best first."""
        ...

    async def delete(self, project_id: str, ids: Sequence[str]) -> None:
        """Remove the project's points with these ids; absent ones and other projects' are left alone."""
        ...

    async def check(self) -> None:
        """Raise :class:`journeyman.platform.kit.errors.Unavailable` unless the index answers."""
        ...


class Embedder(Protocol):
    """Texts to unit vectors whose dot product tells how well they fit. Asymmetric: a query is found among passages.

    Any text is accepted, also an empty one; what exceeds the model's window is cut at its end. ``project_id`` is whom the
    call is for, where a gateway keeps a ledger.
    """

    async def embed_passages(self, texts: list[str], *, project_id: str | None = None) -> list[list[float]]:
        """One vector a text, in order. Raises :class:`journeyman.platform.kit.errors.Unavailable`."""
        ...

    async def embed_query(self, text: str, *, project_id: str | None = None) -> list[float]: ...
