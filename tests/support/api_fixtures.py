"""Fixtures for tests of the REST process; a folder's conftest imports those it uses."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from journeyman.apps.embedded.postgres import create_database
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.migrate import upgrade
from journeyman.platform.kit.settings import Settings
from support.api import Caller, RunningApi, api_settings, running
from support.database import truncate_all


@pytest.fixture(scope="session")
def clean_settings(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of an API with a data directory of its own, which takes any instruction."""
    directory: Path = tmp_path_factory.mktemp("api")
    assert settings.embedding_base_url is not None
    # No gateway runs beside it: the memory asks the embeddings server itself.
    return api_settings(settings, directory, gateway_url=settings.embedding_base_url.removesuffix("/v1"))


@pytest.fixture(scope="session")
async def api(clean_settings: Settings) -> AsyncIterator[RunningApi]:
    """The application with its lifespan, on the real servers."""
    async with running(clean_settings) as api:
        yield api


@pytest.fixture(scope="session")
async def apart_settings(clean_settings: Settings) -> Settings:
    """The same with a database of its own, whose outbox no other API delivers."""
    url = await create_database(clean_settings.database_url, f"apart_{secrets.token_hex(4)}")
    await asyncio.to_thread(upgrade, url)
    return clean_settings.model_copy(update={"database_url": url})


@pytest.fixture
async def apart_database(apart_settings: Settings) -> AsyncIterator[Database]:
    """That database, emptied before the test."""
    database = Database(create_engine(apart_settings.database_url, application_name="journeyman-tests"))
    await truncate_all(database)
    yield database
    await database.close()


@pytest.fixture
async def operator(api: RunningApi) -> AsyncIterator[Caller]:
    """A client with an operator key of an organization that nobody else uses."""
    async with api.caller(role="operator") as operator:
        yield operator


@pytest.fixture
async def caller(api: RunningApi) -> AsyncIterator[Caller]:
    """A client with an admin key of a project that nobody else uses."""
    async with api.caller() as caller:
        yield caller
