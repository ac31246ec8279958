"""The REST process for tests: in this process, on the real servers; each caller in a project of its own."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from journeyman.apps.roles.api import api_server
from journeyman.platform.api.app import create_app
from journeyman.platform.http.dependencies import Resources
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.settings import Settings
from journeyman.platform.tenancy import service as tenancy
from support.rows import make_project

NOBODY = "http://127.0.0.1:9/v1"
"""A model's address that is never asked: with it, any instruction is taken."""


def api_settings(settings: Settings, directory: Path, **changes: Any) -> Settings:
    """Settings for an API under test: a data directory of its own, and a model, so that any instruction is taken."""
    return settings.model_copy(update={"data_dir": directory, "model_base_url": NOBODY, **changes})


@dataclass
class RunningApi:
    app: FastAPI
    database: Database

    @property
    def resources(self) -> Resources:
        resources: Resources = self.app.state.resources
        return resources

    @asynccontextmanager
    async def caller(self, *, role: tenancy.Role = "admin", project_id: str | None = None) -> AsyncIterator["Caller"]:
        """A client with a key of a new project (or of the given one)."""
        project_id = project_id or await make_project(self.database)
        async with self.database.transaction() as session:
            new = await tenancy.create_key(session, project_id, "test", role)
        transport = httpx.ASGITransport(self.app)
        async with Caller(project_id, new.secret, base_url="http://api.test", transport=transport) as caller:
            yield caller


class Caller(httpx.AsyncClient):
    """An HTTP client that belongs to a project."""

    def __init__(self, project_id: str, key: str, **options: Any) -> None:
        super().__init__(headers={"Authorization": f"Bearer {key}"}, timeout=30, **options)
        self.project_id = project_id
        self.key = key

    async def submit(self, **body: Any) -> dict[str, Any]:
        response = await self.post("/v1/tasks", json={"instruction": "Do something.", **body})
        assert response.status_code == 201, response.text
        task: dict[str, Any] = response.json()
        return task


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[RunningApi]:
    """An application whose lifespan has begun; called without sockets."""
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield RunningApi(app, app.state.resources[Database])


@dataclass
class ServedApi:
    url: str
    resources: Resources


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[ServedApi]:
    """The whole process on a free port: uvicorn, in this event loop."""
    port = free_port()
    server = api_server(settings.model_copy(update={"api_port": port}))
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(20):
            while not server.started:
                assert not serving.done(), "the server ended while it started"
                await asyncio.sleep(0.01)
        yield ServedApi(f"http://127.0.0.1:{port}", server.resources)
    finally:
        server.should_exit = True
        await serving


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
    return port


@asynccontextmanager
async def calling(url: str, database: Database, project_id: str | None = None) -> AsyncIterator[Caller]:
    """A client with a key of a new project (or of the given one), over a socket."""
    project_id = project_id or await make_project(database)
    async with database.transaction() as session:
        new = await tenancy.create_key(session, project_id, "test", "admin")
    async with Caller(project_id, new.secret, base_url=url) as caller:
        yield caller


def fields_of(response: httpx.Response) -> set[str]:
    """The fields that a problem document blames."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    return {entry["field"] for entry in response.json()["errors"]}
