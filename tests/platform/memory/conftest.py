"""A memory in a database and a collection of its own, on the real Qdrant storage and the real embedder."""

import uuid
from collections.abc import AsyncIterator

import pytest

from journeyman.apps.embedded.services import EMBEDDING_DIMENSIONS, EMBEDDING_MODEL
from journeyman.platform.kit.database import Database
from journeyman.platform.memory.embedder import OpenAIEmbedder
from journeyman.platform.memory.qdrant import QdrantVectorMemory
from journeyman.platform.memory.service import MemoryService
from support.memory import Bench


@pytest.fixture
async def bench(apart_database: Database, qdrant_url: str, embeddings_url: str) -> AsyncIterator[Bench]:
    """No sweep runs here but the test's own."""
    vectors = QdrantVectorMemory(qdrant_url, f"memory_{uuid.uuid4().hex}", EMBEDDING_DIMENSIONS)
    embedder = OpenAIEmbedder(embeddings_url, "none", EMBEDDING_MODEL)
    service = MemoryService(apart_database, vectors, embedder)
    yield await Bench.made(apart_database, vectors, embedder, service)
    await service.settled()
    await embedder.close()
    await vectors.close()
