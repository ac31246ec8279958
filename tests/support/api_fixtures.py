"""Fixtures for tests of the REST process; a folder's conftest imports those it uses."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from journeyman.platform.kit.settings import Settings
from support.api import Caller, RunningApi, api_settings, running


@pytest.fixture(scope="session")
def clean_settings(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of an API with a data directory of its own, which takes any instruction."""
    directory: Path = tmp_path_factory.mktemp("api")
    return api_settings(settings, directory)


@pytest.fixture(scope="session")
async def api(clean_settings: Settings) -> AsyncIterator[RunningApi]:
    """The application with its lifespan, on the real servers."""
    async with running(clean_settings) as api:
        yield api


@pytest.fixture
async def caller(api: RunningApi) -> AsyncIterator[Caller]:
    """A client with an admin key of a project that nobody else uses."""
    async with api.caller() as caller:
        yield caller
