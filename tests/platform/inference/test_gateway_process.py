"""The gateway as a process of its own, killed and started again."""

import asyncio
import os
import signal
import socket
import sys

import httpx
import pytest
import sqlalchemy as sa

from journeyman.platform.inference.client import OpenAIModelEngine
from journeyman.platform.inference.errors import ModelUnavailable
from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.ledger.models import LedgerEntry
from support.rows import make_project, make_task

SECRET = "internal-secret-of-the-tests"
CODE = (
    "from journeyman.apps.roles.gateway import run_gateway;"
    "from journeyman.platform.kit.settings import Settings;"
    "run_gateway(Settings())"
)


@pytest.fixture
async def start_gateway(postgres_url, engine):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "JOURNEYMAN_DATABASE_URL": postgres_url,
        "JOURNEYMAN_GATEWAY_PORT": str(port),
        "JOURNEYMAN_INTERNAL_SECRET": SECRET,
        "JOURNEYMAN_MODEL_BASE_URL": engine.base_url,
    }
    started = []

    async def start():
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", CODE, env=environment)
        started.append(process)
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(30), httpx.AsyncClient() as http:
            while True:
                assert process.returncode is None
                try:
                    if (await http.get(f"{url}/readyz")).status_code == 200:
                        return process, url
                except httpx.TransportError:
                    await asyncio.sleep(0.05)

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_kill_and_restart(start_gateway, engine, database, model_request):
    project = await make_project(database)
    task = await make_task(database, project)

    async def hang(request):
        await asyncio.Event().wait()

    engine.handler = hang
    process, url = await start_gateway()
    client = OpenAIModelEngine(f"{url}/v1", SECRET)
    call = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step", 1, task))))
    await asyncio.wait_for(engine.entered.wait(), 10)
    process.kill()
    await process.wait()
    with pytest.raises(ModelUnavailable):
        await call
    # The engine sees the hang-up of a killed gateway too.
    await asyncio.wait_for(engine.cancelled.wait(), 5)

    engine.handler = engine.plain
    process, url = await start_gateway()
    answer = await client.complete(model_request(identity=CallIdentity(project, "step", 2, task)))
    assert answer.text == "Hello"
    async with database.transaction() as session:
        query = sa.select(LedgerEntry).where(LedgerEntry.task_id == task).order_by(LedgerEntry.attempt)
        found = [(entry.attempt, entry.state) for entry in await session.scalars(query)]
    assert found == [(1, "ambiguous"), (2, "settled")]
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 15) == 0
    await client.close()
