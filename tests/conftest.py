"""Fixtures that every test folder may use: the real servers, started once a session and only when a test asks.

settings          Settings that point at all of the servers below
postgres_url      URL of a migrated database of this session's own, apart from the one ``full_stack`` works in
database          kit.database.Database on it
clean_database    the same, every table emptied before the test
object_store      S3ObjectStore on SeaweedFS, with a bucket
temporal_address  host:port of a Temporal dev server
qdrant_url        for QdrantVectorMemory
embeddings_url    OpenAI-compatible base URL
platform          support.platform.Platform, a client of full_stack
full_stack        EmbeddedStack with everything, API, gateway and workers included: ``full_stack.settings``
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from journeyman.apps.embedded.postgres import create_database
from journeyman.apps.embedded.stack import EVERYTHING, EmbeddedStack
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.migrate import upgrade
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.kit.settings import Settings
from support.database import truncate_all
from support.platform import Platform, client_of
from support.stack import SessionStack


@pytest.fixture(scope="session")
async def session_stack() -> AsyncIterator[SessionStack]:
    stack = SessionStack()
    yield stack
    await stack.close()


@pytest.fixture(scope="session")
async def postgres_url(session_stack: SessionStack) -> str:
    stack = await session_stack.ask("postgres")
    url = await create_database(stack.settings.database_url, "tests")
    await asyncio.to_thread(upgrade, url)
    return url


@pytest.fixture(scope="session")
async def database(postgres_url: str) -> AsyncIterator[Database]:
    database = Database(create_engine(postgres_url, application_name="journeyman-tests"))
    yield database
    await database.close()


@pytest.fixture
async def clean_database(database: Database) -> Database:
    await truncate_all(database)
    return database


@pytest.fixture(scope="session")
async def object_store(session_stack: SessionStack) -> S3ObjectStore:
    stack = await session_stack.ask("objects", "bucket")
    return S3ObjectStore.from_settings(stack.settings)


@pytest.fixture(scope="session")
async def temporal_address(session_stack: SessionStack) -> str:
    return (await session_stack.ask("temporal")).settings.temporal_address


@pytest.fixture(scope="session")
async def qdrant_url(session_stack: SessionStack) -> str:
    return (await session_stack.ask("vectors")).settings.qdrant_url


@pytest.fixture(scope="session")
async def embeddings_url(session_stack: SessionStack) -> str:
    url = (await session_stack.ask("embeddings")).settings.embedding_base_url
    assert url is not None
    return url


@pytest.fixture(scope="session")
async def settings(
    session_stack: SessionStack,
    postgres_url: str,
    object_store: S3ObjectStore,
    temporal_address: str,
    qdrant_url: str,
    embeddings_url: str,
) -> Settings:
    stack = await session_stack.ask()
    return stack.settings.model_copy(update={"database_url": postgres_url})


@pytest.fixture(scope="session")
async def full_stack(session_stack: SessionStack) -> EmbeddedStack:
    """Works in a database of its own, so that ``clean_database`` takes nothing away from it."""
    return await session_stack.ask(*EVERYTHING)


@pytest.fixture
async def platform(full_stack: EmbeddedStack) -> AsyncIterator[Platform]:
    """A client of ``full_stack``."""
    async with client_of(full_stack) as running:
        yield running
