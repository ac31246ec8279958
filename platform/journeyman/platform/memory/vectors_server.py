"""The embedded stack's vector memory: a part of Qdrant's REST API over qdrant-client's local storage.

    python -m journeyman.platform.memory.vectors_server

This is the one process that opens the storage; all others come through it, with the same client as for a Qdrant server.
It knows the calls that :mod:`journeyman.platform.memory.qdrant` makes, and answers them as a Qdrant server does.

Environment: ``JOURNEYMAN_VECTORS_PATH``, ``JOURNEYMAN_VECTORS_PORT``, ``JOURNEYMAN_VECTORS_KEY`` (wanted in the header
``api-key``). Listens on loopback only.
"""

import asyncio
import json
import os
import secrets
import shutil
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import uvicorn
from fastapi import APIRouter, Body, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from qdrant_client import QdrantClient, models

T = TypeVar("T")

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


def create_app(path: Path, key: str) -> FastAPI:
    """The server's application; ``key`` is wanted with every request."""
    storage = LocalStorage(path)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await storage.open()
        yield
        await storage.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None, dependencies=[Depends(_timed)])
    app.state.storage = storage

    @app.middleware("http")
    async def authenticate(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.headers.get("api-key", "")
        if not secrets.compare_digest(given.encode(), key.encode()):
            return JSONResponse(
                {"status": {"error": "Must provide an API key or an Authorization bearer token"}}, status_code=401
            )
        return await call_next(request)

    app.add_exception_handler(ValueError, partial(_refuse, 400))
    app.add_exception_handler(Exception, partial(_refuse, 500))
    app.include_router(_router)
    return app


async def _timed(request: Request) -> None:
    request.state.started = time.monotonic()


async def _refuse(status: int, _request: Request, error: Exception) -> Response:
    # The storage says ValueError both for what is absent and for what is wrong.
    code = 404 if status == 400 and "not found" in str(error) else status
    return JSONResponse({"status": {"error": str(error)}, "time": 0.0}, status_code=code)


def _answer(request: Request, result: Any) -> dict[str, Any]:
    return {"result": result, "status": "ok", "time": time.monotonic() - request.state.started}


def _storage(request: Request) -> LocalStorage:
    storage: LocalStorage = request.app.state.storage
    return storage


_UPDATED = {"operation_id": 0, "status": "completed"}
_router = APIRouter()


@_router.get("/readyz")
async def ready(request: Request) -> dict[str, Any]:
    await _storage(request).call(lambda client: client.get_collections())
    return _answer(request, True)


@_router.get("/collections/{name}/exists")
async def collection_exists(request: Request, name: str) -> dict[str, Any]:
    exists = await _storage(request).call(lambda client: client.collection_exists(name))
    return _answer(request, {"exists": exists})


@_router.get("/collections/{name}")
async def get_collection(request: Request, name: str) -> dict[str, Any]:
    info = await _storage(request).call(lambda client: client.get_collection(name))
    return _answer(request, info.model_dump(mode="json"))


@_router.put("/collections/{name}")
async def create_collection(request: Request, name: str, body: models.CreateCollection) -> Any:
    if not await _storage(request).create(name, body):
        return JSONResponse(
            {"status": {"error": f"Wrong input: Collection `{name}` already exists!"}, "time": 0.0}, status_code=409
        )
    return _answer(request, True)


@_router.put("/collections/{name}/index")
async def create_index(request: Request, name: str) -> dict[str, Any]:
    """Local storage scans; there is no index to make."""
    await _storage(request).call(lambda client: client.get_collection(name))
    return _answer(request, _UPDATED)


@_router.put("/collections/{name}/points")
async def upsert(request: Request, name: str, body: models.PointsList) -> dict[str, Any]:
    await _storage(request).call(lambda client: client.upsert(name, body.points))
    return _answer(request, _UPDATED)


@_router.post("/collections/{name}/points/delete")
async def delete(
    request: Request, name: str, body: Annotated[models.FilterSelector | models.PointIdsList, Body()]
) -> dict[str, Any]:
    await _storage(request).call(lambda client: client.delete(name, body))
    return _answer(request, _UPDATED)


@_router.post("/collections/{name}/points/query")
async def query(request: Request, name: str, body: models.QueryRequest) -> dict[str, Any]:
    vector = body.query.nearest if isinstance(body.query, models.NearestQuery) else body.query
    if not isinstance(vector, list):
        raise ValueError("this server compares plain vectors only")  # noqa: TRY004  answered as a 400
    found = await _storage(request).call(
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
    return _answer(request, found.model_dump(mode="json"))


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
