"""What the gateway adds: per request, against the same engine asked directly, and per chunk of a stream.

The engine answers at once and runs in a process of its own, as do the gateway and PostgreSQL, to which every call is
written before it is sent and after it has ended. The cost of a chunk is CPU time of the gateway's process, measured while
streams arrive at the pace of a real engine, so that no two chunks share a read.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import psutil
import uvicorn

from benchmarks.database import empty_database
from benchmarks.results import Row, percentile, report
from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.kit.ids import new_id

SECRET = "benchmark-secret"
REQUESTS = 300
STREAMS = 40
CHUNKS = 150
PACE_S = 0.02

_GATEWAY = (
    "from journeyman.apps.roles.gateway import run_gateway;"
    "from journeyman.platform.kit.settings import Settings; run_gateway(Settings())"
)
_USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
_ENVELOPE = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    value = {**_ENVELOPE, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


_WORD = _chunk({"content": " word"})
_END = _chunk({}, "stop") + b"data: " + json.dumps({**_ENVELOPE, "choices": [], "usage": _USAGE}).encode() + b"\n\n"
_WHOLE = json.dumps(
    {
        **_ENVELOPE,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word"}, "finish_reason": "stop"}],
        "usage": _USAGE,
    }
).encode()


async def instant_engine(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers whole, or streams as many words as ``max_tokens`` says at the pace in ``x_pace``."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    request = json.loads(body) if body else {}
    kind = b"text/event-stream" if request.get("stream") else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if not request.get("stream"):
        await send({"type": "http.response.body", "body": _WHOLE})
        return
    for _ in range(request.get("max_tokens", 1)):
        await send({"type": "http.response.body", "body": _WORD, "more_body": True})
        if pace := request.get("x_pace"):
            await asyncio.sleep(pace)
    await send({"type": "http.response.body", "body": _END + b"data: [DONE]\n\n"})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def _process(*arguments: str, url: str, **environment: str) -> AsyncIterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, *arguments], env={**os.environ, **environment})
    try:
        async with asyncio.timeout(30), aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"{url}/healthz") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


class Caller:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url
        self.project = new_id("project")

    async def ask(self, body: bytes) -> float:
        """Seconds to the end of the answer."""
        identity = CallIdentity(self.project, new_id("request"))
        headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json", **identity.headers()}
        started = time.perf_counter()
        async with self.http.post(f"{self.url}/v1/chat/completions", data=body, headers=headers) as response:
            answer = await response.read()
            assert response.status == 200, answer
        return time.perf_counter() - started


def _body(*, prompt: int = 2000, **more: Any) -> bytes:
    messages = [{"role": "user", "content": "p" * prompt}]
    return json.dumps({"model": "m", "messages": messages, "stream_options": {"include_usage": True}, **more}).encode()


async def _compare(
    name: str, direct: Caller, through: Caller, body: bytes, target: float, gateway: psutil.Process
) -> list[Row]:
    """Turn about, so that what else the machine does falls on both."""
    times: dict[str, list[float]] = {"direct": [], "gateway": []}
    before = gateway.cpu_times()
    for turn in range(REQUESTS + 20):
        for label, caller in (("direct", direct), ("gateway", through)):
            seconds = await caller.ask(body)
            if turn >= 20:
                times[label].append(seconds * 1000)
    after = gateway.cpu_times()
    used = (after.user + after.system - before.user - before.system) / (REQUESTS + 20)
    rows = [Row(f"gateway: {name}", "gateway's CPU", used * 1000, "ms")]
    for label, share in (("p50", 0.5), ("p95", 0.95)):
        plain, added = percentile(times["direct"], share), percentile(times["gateway"], share)
        rows.append(Row(f"gateway: {name}", f"added {label}", added - plain, "ms", target if label == "p50" else None))
        rows.append(Row(f"gateway: {name}", f"ratio {label}", added / plain, "x"))
    return rows


async def _chunk_cost(through: Caller, gateway: psutil.Process) -> list[Row]:
    body = _body(stream=True, max_tokens=CHUNKS, x_pace=PACE_S)
    await asyncio.gather(*(through.ask(body) for _ in range(STREAMS)))
    before = gateway.cpu_times()
    started = time.perf_counter()
    await asyncio.gather(*(through.ask(body) for _ in range(STREAMS)))
    elapsed = time.perf_counter() - started
    after = gateway.cpu_times()
    used = (after.user + after.system) - (before.user + before.system)
    rate = STREAMS * CHUNKS / elapsed
    cost = used / (STREAMS * CHUNKS)
    return [
        Row("gateway: streams", "CPU per chunk", cost * 1e6, "µs", 100.0),
        Row("gateway: streams", "chunks per second while measured", rate, "1/s"),
        Row("gateway: streams", "streams of 40 chunks/s a core could carry", 1 / (40 * cost), ""),
    ]


async def measure() -> list[Row]:
    async with empty_database() as database_url:
        engine_url, gateway_port = f"http://127.0.0.1:{_free_port()}", _free_port()
        gateway_url = f"http://127.0.0.1:{gateway_port}"
        settings = {
            "JOURNEYMAN_DATABASE_URL": database_url,
            "JOURNEYMAN_GATEWAY_PORT": str(gateway_port),
            "JOURNEYMAN_INTERNAL_SECRET": SECRET,
            "JOURNEYMAN_MODEL_BASE_URL": f"{engine_url}/v1",
            "JOURNEYMAN_LOG_LEVEL": "WARNING",
        }
        async with (
            _process("-m", "benchmarks.gateway", "engine", engine_url.rsplit(":", 1)[1], url=engine_url),
            _process("-c", _GATEWAY, url=gateway_url, **settings) as gateway,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        ):
            direct, through = Caller(http, engine_url), Caller(http, gateway_url)
            rows = await _compare("whole answer", direct, through, _body(), 10.0, gateway)
            rows += await _compare("stream of 20", direct, through, _body(stream=True, max_tokens=20), 10.0, gateway)
            rows += await _compare("400 KB prompt", direct, through, _body(prompt=400_000), 15.0, gateway)
            rows += await _chunk_cost(through, gateway)
            return rows


def main() -> int:
    if sys.argv[1:2] == ["engine"]:
        uvicorn.run(instant_engine, host="127.0.0.1", port=int(sys.argv[2]), log_config=None, lifespan="off")
        return 0
    rows = asyncio.run(measure())
    report("gateway", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
