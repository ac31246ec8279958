"""Readiness probes: small enough not to load an HTTP client into the supervisor."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from journeyman.apps.embedded.specs import Probe


async def http_get(port: int, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of ``GET`` on loopback. Raises ``OSError`` or ``ValueError`` when nothing sensible answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await writer.drain()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = head.split(b" ", 2)[1:2]
    if not status or not status[0].isdigit():
        raise ValueError(f"port {port} does not answer in HTTP")
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    return int(status[0]), body


def http_ready(port: int, path: str, headers: Mapping[str, str] | None = None) -> Probe:
    """Ready when ``GET path`` is answered with a 2xx."""

    async def probe(_pid: int) -> None:
        status, body = await http_get(port, path, headers)
        if not 200 <= status < 300:
            raise ValueError(f"GET {path} answers {status}: {body[:200].decode('utf-8', 'replace')}")

    return probe


def temporal_worker_ready(http_port: int, namespace: str, task_queue: str) -> Probe:
    """Ready when Temporal has seen this very process poll the task queue: then work reaches it."""

    async def probe(pid: int) -> None:
        path = f"/api/v1/namespaces/{namespace}/task-queues/{task_queue}?taskQueueType=TASK_QUEUE_TYPE_WORKFLOW"
        status, body = await http_get(http_port, path)
        if status != 200:
            raise ValueError(f"Temporal answers {status} when asked for the pollers of {task_queue}")
        pollers: list[dict[str, Any]] = json.loads(body).get("pollers", [])
        if not any(str(poller.get("identity", "")).startswith(f"{pid}@") for poller in pollers):
            raise ValueError(f"it does not poll {task_queue} yet")

    return probe


def _unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.split(b";")[0] or b"0", 16)
        if length == 0:
            break
        whole += rest[:length]
        body = rest[length + 2 :]
    return whole
