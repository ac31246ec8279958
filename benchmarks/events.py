"""How long an event takes from its commit to clients of the stream: 50 of them, on a real API process and sockets."""

import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.results import Row, percentile, report
from journeyman.apps.embedded.roles import environment_of
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.settings import Settings

CLIENTS = 50
EVENTS = 400
EVERY_S = 0.025
"""40 events a second: more than 50 agents at once write in practice."""
TARGET_MS = 50
DATA = {"role": "coder", "tool": "shell", "text": "x" * 500}


@dataclass
class Measured:
    """When events were committed, and when clients had them; by task and seq."""

    committed: dict[tuple[str, int], float] = field(default_factory=dict)
    received: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def latencies_ms(self) -> list[float]:
        return [
            (moment - committed) * 1000
            for key, committed in self.committed.items()
            for moment in self.received.get(key, ())
        ]


@dataclass
class Api:
    url: str
    key: str
    database: Database


@asynccontextmanager
async def serving() -> AsyncIterator[Api]:
    """The servers and one API process; without workers, nothing but this benchmark writes events."""
    with tempfile.TemporaryDirectory(prefix="jm-bench-", ignore_cleanup_errors=True) as root:
        async with EmbeddedStack(
            Path(root) / "data", parts={"postgres", "migrations", "objects", "bucket", "temporal"}
        ) as stack:
            # A model's address, so that any instruction is taken; without workers nobody asks it.
            settings = stack.settings.model_copy(
                update={"model_base_url": "http://127.0.0.1:9/v1", "log_level": "WARNING"}
            )
            database = Database(create_engine(settings.database_url))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "from journeyman.apps.cli.main import main; main()", "api",
                env=environment_of(settings),
            )  # fmt: skip
            try:
                await _ready(settings, process)
                yield Api(settings.api_url, (settings.data_dir / "admin.key").read_text().strip(), database)
            finally:
                process.terminate()
                await process.wait()
                await database.close()


async def _ready(settings: Settings, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(30), httpx.AsyncClient(base_url=settings.api_url) as client:
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"the API ended with {process.returncode}")
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def follow(api: Api, task_id: str, measured: Measured, open_: asyncio.Event, last: int) -> None:
    """One client: as little of its own work as possible, so that the platform is measured and not the client."""
    url = httpx.URL(api.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    path = f"/v1/tasks/{task_id}/events/stream"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {api.key}\r\n\r\n".encode())
    while True:
        line = await reader.readline()
        if not line:
            raise RuntimeError("the stream ended")
        if line.startswith(b": open"):
            open_.set()
        if line.startswith(b"data: "):
            seq = _seq(line)
            measured.received[task_id, seq].append(time.perf_counter())
            if seq >= last:
                writer.close()
                return


def _seq(line: bytes) -> int:
    at = line.index(b'"seq":') + 6
    return int(line[at : line.index(b",", at)])


async def measure(api: Api, tasks: int) -> list[float]:
    """50 clients spread over so many tasks, while events are written to all of them in turn."""
    measured = Measured()
    async with httpx.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {api.key}"}) as client:
        ids = []
        for number in range(tasks):
            response = await client.post("/v1/tasks", json={"instruction": f"Benchmark {number}"})
            response.raise_for_status()
            ids.append(str(response.json()["id"]))
    last = 1 + EVENTS // tasks
    opened = [asyncio.Event() for _ in range(CLIENTS)]
    clients = [
        asyncio.create_task(follow(api, ids[number % tasks], measured, opened[number], last))
        for number in range(CLIENTS)
    ]
    await asyncio.gather(*(each.wait() for each in opened))
    for number in range(EVENTS):
        task_id = ids[number % tasks]
        async with api.database.transaction() as session:
            seq = (await append(session, task_id, EventType.AGENT_TOOL_RESULT, {**DATA, "n": number})).seq
        measured.committed[task_id, seq] = time.perf_counter()
        await asyncio.sleep(EVERY_S)
    async with asyncio.timeout(30):
        await asyncio.gather(*clients)
    return measured.latencies_ms()


async def run() -> list[Row]:
    rows = []
    async with serving() as api:
        for tasks in (1, CLIENTS):
            times = await measure(api, tasks)
            name = f"event to {CLIENTS} stream clients, {tasks} task{'s' if tasks > 1 else ''}"
            rows.append(Row(name, "p50", percentile(times, 0.5), "ms"))
            rows.append(Row(name, "p95", percentile(times, 0.95), "ms", TARGET_MS))
    return rows


def main() -> None:
    report("events", asyncio.run(run()))


if __name__ == "__main__":
    main()
