"""Real servers on loopback for the tests of the inference slice."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvicorn
from aiohttp import web

from journeyman.platform.inference.client import OpenAIModelEngine
from journeyman.platform.inference.gateway.app import create_gateway
from journeyman.platform.inference.port import CallIdentity, ModelRequest
from journeyman.platform.kit.settings import Settings
from support.gateway import INTERNAL, MODEL_KEY
from support.rows import make_project, make_task

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve_aiohttp(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serve_asgi(app: Any) -> AsyncIterator[str]:
    config = uvicorn.Config(app, host="127.0.0.1", port=0, ws="none", lifespan="on", access_log=False, log_config=None)
    config.timeout_graceful_shutdown = 2
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    async with asyncio.timeout(10):
        while not server.started:
            assert not task.done(), task
            await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


class Engine:
    """An engine under the test's control: every request is kept, ``handler`` answers. ``cancelled`` tells of hang-ups."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.raw: list[bytes] = []
        self.handler: Handler = self.plain
        self.cancelled = asyncio.Event()
        self.entered = asyncio.Event()

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.raw.append(body)
        self.requests.append(json.loads(body))
        self.headers.append(dict(request.headers))
        self.entered.set()
        try:
            return await self.handler(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def plain(self, request: web.Request) -> web.StreamResponse:
        if self.requests[-1].get("stream"):
            return await self.stream(request, chunk({"content": "Hello"}), chunk({}, "stop"), usage_chunk(), b"[DONE]")
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "usage": USAGE,
             "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
        )  # fmt: skip

    async def stream(self, request: web.Request, *events: dict[str, Any] | bytes) -> web.StreamResponse:
        response = await self.open_stream(request)
        for event in events:
            await response.write(sse(event))
        await response.write_eof()
        return response

    async def open_stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice], **more}


def usage_chunk() -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [], "usage": USAGE}


def sse(event: dict[str, Any] | bytes) -> bytes:
    return b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n"


class Wire:
    """The functions above, for tests that cannot import this file."""

    USAGE = USAGE
    chunk = staticmethod(chunk)
    usage_chunk = staticmethod(usage_chunk)
    sse = staticmethod(sse)


@pytest.fixture
def wire() -> type[Wire]:
    return Wire


@pytest.fixture
async def servers() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def serve_app(servers: AsyncExitStack) -> Callable[[Any], Awaitable[str]]:
    """Serve an aiohttp or an ASGI application until the test ends; gives its URL."""

    async def serve(app: Any) -> str:
        context = serve_aiohttp(app) if isinstance(app, web.Application) else serve_asgi(app)
        return await servers.enter_async_context(context)

    return serve


@pytest.fixture
async def engine(serve_app: Callable[[Any], Awaitable[str]]) -> Engine:
    engine = Engine()
    app = web.Application(client_max_size=256 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", engine.handle)
    app.router.add_post("/v1/embeddings", engine.handle)

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    app.router.add_get("/v1/models", models)
    engine.url = await serve_app(app)
    return engine


@pytest.fixture
def model_request() -> Callable[..., ModelRequest]:
    def make(**changes: Any) -> ModelRequest:
        identity = changes.pop("identity", None) or CallIdentity("proj_1", "task_1/thr_1/1", 1)
        values: dict[str, Any] = {
            "model": "standard",
            "messages": [{"role": "user", "content": "Hi"}],
            "identity": identity,
            "idle_timeout_s": 5.0,
        }
        return ModelRequest(**{**values, **changes})

    return make


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def gateway_settings(engine, tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text(
        json.dumps({"models": [{"match": "engine-*", "input": 1000, "cached_input": 100, "output": 2000}]})
    )
    return Settings(
        internal_secret=INTERNAL,
        model_base_url=engine.base_url,
        model_api_key=MODEL_KEY,
        model_standard="engine-large",
        model_fast="engine-small",
        model_prices=prices,
        model_timeout_s=5,
        embedding_base_url=engine.base_url,
    )


@pytest.fixture
async def gateway(gateway_settings, database, serve_app):
    return await serve_app(create_gateway(gateway_settings, database))


@pytest.fixture
async def project(database):
    return await make_project(database)


@pytest.fixture
async def task(database, project):
    return await make_task(database, project)


@pytest.fixture
async def client(gateway):
    client = OpenAIModelEngine(f"{gateway}/v1", INTERNAL)
    yield client
    await client.close()


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session
