"""The embedded stack's vector memory: a part of Qdrant's REST API over qdrant-client's local storage.

    python -m journeyman.platform.memory.vectors_server

This is the one process that opens the storage; all others come through it, with the same client as for a Qdrant server.
It knows the calls that :mod:`journeyman.platform.memory.qdrant` makes and the one that drops a collection, and answers them
as a Qdrant server does.

Environment: ``JOURNEYMAN_VECTORS_PATH``, ``JOURNEYMAN_VECTORS_PORT``, ``JOURNEYMAN_VECTORS_KEY`` (wanted in the header
``api-key``). Listens on loopback only.
"""

import asyncio
import json
import logging
import os
import secrets
import shutil
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import uvicorn
from qdrant_client import QdrantClient, models
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

T = TypeVar("T")

logger = logging.getLogger(__name__)

_META = "meta.json"


class LocalStorage:
    """The storage, used from one thread: it is not made for several, and one search takes milliseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="storage")
        self._client: QdrantClient | None = None

    async def open(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    def _open(self) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._restore_meta()
        self._client = QdrantClient(path=str(self._path))

    async def call(self, function: Callable[[QdrantClient], T]) -> T:
        """Run the function with the client. Waits for its end even when the caller is gone: writes are whole."""
        assert self._client is not None
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, self._client)

    async def create(self, name: str, wanted: models.CreateCollection) -> bool:
        """Whether the collection was absent and now is there."""

        def create(client: QdrantClient) -> bool:
            if client.collection_exists(name):
                return False
            client.create_collection(name, vectors_config=wanted.vectors)
            self._keep_meta()
            return True

        return await self.call(create)

    async def drop(self, name: str) -> bool:
        """Whether the collection was there and now is not."""

        def drop(client: QdrantClient) -> bool:
            if not client.collection_exists(name):
                return False
            client.delete_collection(name)
            self._keep_meta()
            return True

        return await self.call(drop)

    def _keep_meta(self) -> None:
        """Keep a copy of the list of collections: the storage rewrites it in place, which a kill may cut short."""
        partial_file = self._path / f"{_META}.partial"
        shutil.copyfile(self._path / _META, partial_file)
        partial_file.replace(self._path / f"{_META}.copy")

    def _restore_meta(self) -> None:
        meta, copy = self._path / _META, self._path / f"{_META}.copy"
        try:
            json.loads(meta.read_text())
        except FileNotFoundError:
            return
        except ValueError:
            if copy.exists():
                shutil.copyfile(copy, meta)
            else:
                meta.unlink()

    async def close(self) -> None:
        if self._client is not None:
            await self.call(lambda client: client.close())
        self._thread.shutdown()


def create_app(path: Path, key: str) -> Starlette:
    """The server's application; ``key`` is wanted with every request."""
    storage = LocalStorage(path)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await storage.open()
        yield
        await storage.close()

    collections = Collections(storage)
    routes = [
        ("GET", "/readyz", collections.ready),
        ("GET", "/collections/{name}/exists", collections.exists),
        ("GET", "/collections/{name}", collections.get),
        ("PUT", "/collections/{name}", collections.create),
        ("DELETE", "/collections/{name}", collections.drop),
        ("PUT", "/collections/{name}/index", collections.index),
        ("PUT", "/collections/{name}/points", collections.upsert),
        ("POST", "/collections/{name}/points/delete", collections.delete),
        ("POST", "/collections/{name}/points/query", collections.query),
    ]
    return Starlette(
        routes=[Route(where, _endpoint(answer, key), methods=[method]) for method, where, answer in routes],
        lifespan=lifespan,
    )


Answer = Callable[[Request], Awaitable[Any]]


def _endpoint(answer: Answer, key: str) -> Callable[[Request], Awaitable[Response]]:
    """Checks the key, and puts results and errors into the form of Qdrant's own."""

    async def respond(request: Request) -> Response:
        started = time.monotonic()
        given = request.headers.get("api-key", "")
        if not secrets.compare_digest(given.encode(), key.encode()):
            return _refusal(401, "Must provide an API key or an Authorization bearer token", started)
        try:
            result = await answer(request)
        except Exists as error:
            return _refusal(409, str(error), started)
        except ValueError as error:
            # The storage says ValueError both for what is absent and for what is wrong.
            return _refusal(404 if "not found" in str(error) else 400, str(error), started)
        except Exception as error:
            logger.exception("request failed")
            return _refusal(500, str(error), started)
        return JSONResponse({"result": result, "status": "ok", "time": time.monotonic() - started})

    return respond


def _refusal(status: int, message: str, started: float) -> Response:
    return JSONResponse({"status": {"error": message}, "time": time.monotonic() - started}, status_code=status)


class Exists(Exception):
    """The collection that is to be created is there."""


_COMPLETED: Final = {"operation_id": 0, "status": "completed"}


class Collections:
    """The calls, each from a request to a JSON-able result."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage

    async def ready(self, _request: Request) -> bool:
        await self._storage.call(lambda client: client.get_collections())
        return True

    async def exists(self, request: Request) -> dict[str, bool]:
        name = request.path_params["name"]
        return {"exists": await self._storage.call(lambda client: client.collection_exists(name))}

    async def get(self, request: Request) -> Any:
        name = request.path_params["name"]
        return (await self._storage.call(lambda client: client.get_collection(name))).model_dump(mode="json")

    async def create(self, request: Request) -> bool:
        name = request.path_params["name"]
        if not await self._storage.create(name, models.CreateCollection.model_validate_json(await request.body())):
            raise Exists(f"Wrong input: Collection `{name}` already exists!")
        return True

    async def drop(self, request: Request) -> bool:
        """For an operator: the platform makes it anew, and indexes every memory again."""
        return await self._storage.drop(request.path_params["name"])

    async def index(self, request: Request) -> dict[str, Any]:
        """Local storage scans; there is no index to make."""
        await self.get(request)
        return _COMPLETED

    async def upsert(self, request: Request) -> dict[str, Any]:
        name, body = request.path_params["name"], models.PointsList.model_validate_json(await request.body())
        await self._storage.call(lambda client: client.upsert(name, body.points))
        return _COMPLETED

    async def delete(self, request: Request) -> dict[str, Any]:
        name, body = request.path_params["name"], models.FilterSelector.model_validate_json(await request.body())
        await self._storage.call(lambda client: client.delete(name, body))
        return _COMPLETED

    async def query(self, request: Request) -> Any:
        name, body = request.path_params["name"], models.QueryRequest.model_validate_json(await request.body())
        vector = body.query.nearest if isinstance(body.query, models.NearestQuery) else body.query
        if not isinstance(vector, list):
            raise ValueError("this server compares plain vectors only")  # noqa: TRY004  answered as a 400
        found = await self._storage.call(
            lambda client: client.query_points(
                name,
                query=vector,
                query_filter=body.filter,
                limit=body.limit or 10,
                offset=body.offset,
                score_threshold=body.score_threshold,
                with_payload=body.with_payload if body.with_payload is not None else False,
            )
        )
        return found.model_dump(mode="json")


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    path, port = Path(os.environ["JOURNEYMAN_VECTORS_PATH"]), int(os.environ["JOURNEYMAN_VECTORS_PORT"])
    # It advises to use a Qdrant server for many points: so do our own guides.
    warnings.filterwarnings("ignore", module="qdrant_client")
    uvicorn.run(
        create_app(path, os.environ["JOURNEYMAN_VECTORS_KEY"]),
        host="127.0.0.1",
        port=port,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    main()
