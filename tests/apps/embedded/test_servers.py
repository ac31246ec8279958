"""The real servers: started again after ``kill -9``, with everything that they had acknowledged."""

import asyncio
import os
import uuid
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from journeyman.apps.embedded import objects
from journeyman.apps.embedded.errors import DataDirectoryUnusable, MachineUnfit
from journeyman.apps.embedded.postgres import Postgres
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.s3 import S3ObjectStore
from support.stack import SessionStack, kill_and_wait, part_of


async def test_postgres_keeps_what_was_committed(session_stack: SessionStack) -> None:
    stack = await session_stack.ask("postgres")
    url = stack.settings.database_url.replace("+asyncpg", "")
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE kept (number int)")
    await connection.execute("INSERT INTO kept VALUES (7)")
    await connection.close()
    await kill_and_wait(stack, "postgres")
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT number FROM kept") == 7
    await connection.execute("DROP TABLE kept")
    await connection.close()


async def test_postgres_gives_the_platform_no_superuser(session_stack: SessionStack) -> None:
    stack = await session_stack.ask("postgres")
    connection = await asyncpg.connect(stack.settings.database_url.replace("+asyncpg", ""))
    try:
        assert not await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("COPY (SELECT 1) TO PROGRAM 'cat'")
    finally:
        await connection.close()


async def test_postgres_of_another_version_is_refused(session_stack: SessionStack) -> None:
    root = session_stack.directory / "old-postgres"
    (root / "data").mkdir(parents=True)
    (root / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(DataDirectoryUnusable, match="PostgreSQL 9; the installed wheel is"):
        await Postgres(root, 1, "a", "b")._prepare()


async def test_objects_keep_what_was_put(session_stack: SessionStack) -> None:
    stack = await session_stack.ask("objects", "bucket")
    store = S3ObjectStore.from_settings(stack.settings)
    prefix = f"kill/{uuid.uuid4()}"
    small = {f"{prefix}/{number}": os.urandom(2000) for number in range(20)}
    await asyncio.gather(*(store.put(key, data) for key, data in small.items()))
    large = os.urandom(9_000_000)
    await store.put(f"{prefix}/large", large)
    await store.delete(f"{prefix}/0")
    await kill_and_wait(stack, "objects")
    assert await store.list_keys(prefix) == sorted([*list(small)[1:], f"{prefix}/large"])
    for key, data in list(small.items())[1:]:
        assert await read(store, key) == data
    assert await read(store, f"{prefix}/large") == large
    await store.put(f"{prefix}/after", b"still writable")


async def read(store: S3ObjectStore, key: str) -> bytes:
    """What every caller does: one that has just started may say that it is not there yet, never that the object is gone."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await store.get(key)
            except Unavailable:
                await asyncio.sleep(0.1)


async def test_objects_want_the_key(session_stack: SessionStack) -> None:
    import httpx

    stack = await session_stack.ask("objects", "bucket")
    ports = stack._ports
    store = S3ObjectStore.from_settings(stack.settings)
    await store.put("private", b"secret")
    bucket = stack.settings.s3_bucket
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{ports['objects']}/{bucket}/private")
        assert answer.status_code in {401, 403}
        assert b"secret" not in answer.content
        for name in set(objects.PORTS) - {"objects"}:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.1:{ports[name]}/")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to be another account")
async def test_a_socket_of_another_account_keeps_the_object_store_from_starting(tmp_path: Path) -> None:
    ports = {name: 1_000_001 + number for number, name in enumerate(objects.PORTS)}  # used by no process
    store = objects.Objects(tmp_path, ports, {"s3_access_key": "a", "s3_secret_key": "b", "objects_signing": "c"})
    await store._prepare()
    planted = Path(f"/tmp/seaweedfs-master-grpc-{ports['objects-master-grpc']}.sock")
    planted.touch()
    os.chown(planted, 1_234_567, 1_234_567)
    try:
        with pytest.raises(MachineUnfit, match=planted.name):
            await store._prepare()
    finally:
        planted.unlink()


async def test_temporal_keeps_workflows(session_stack: SessionStack) -> None:
    stack = await session_stack.ask("temporal")
    client = await Client.connect(stack.settings.temporal_address)
    ids = [f"kept-{uuid.uuid4()}" for _ in range(5)]
    for workflow_id in ids:
        await client.start_workflow(
            "Nobody", id=workflow_id, task_queue="nobody", execution_timeout=timedelta(minutes=5)
        )
    await kill_and_wait(stack, "temporal")
    for workflow_id in ids:
        handle = client.get_workflow_handle(workflow_id)
        async with asyncio.timeout(15):
            while True:
                try:
                    assert (await handle.describe()).workflow_type == "Nobody"
                    break
                except RPCError as error:
                    if "not found" in str(error):
                        raise
                    await asyncio.sleep(0.1)  # the server is ready, the client's connection not yet
        await handle.terminate()


async def test_embeddings_come_back(session_stack: SessionStack) -> None:
    stack = await session_stack.ask("embeddings")
    await kill_and_wait(stack, "embeddings")
    assert part_of(stack, "embeddings").restarts >= 1
