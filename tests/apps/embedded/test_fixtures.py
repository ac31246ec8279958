"""The session's servers answer."""

import asyncpg
import sqlalchemy as sa
from temporalio.client import Client

from journeyman.platform.kit.database import Database
from journeyman.platform.kit.s3 import S3ObjectStore


async def test_the_database_is_migrated(database: Database) -> None:
    async with database.transaction() as session:
        assert await session.scalar(sa.text("SELECT count(*) FROM alembic_version")) == 1


async def test_the_database_wants_a_password(postgres_url: str) -> None:
    without = postgres_url.replace("+asyncpg", "").split("@")[1]
    try:
        await asyncpg.connect(f"postgresql://journeyman:wrong@{without}")
    except asyncpg.InvalidPasswordError:
        pass
    else:
        raise AssertionError("a wrong password was accepted")


async def test_the_object_store_keeps_bytes(object_store: S3ObjectStore) -> None:
    await object_store.put("fixtures/a", b"\x00\xff" * 1000)
    assert await object_store.get("fixtures/a", start=1, length=2) == b"\xff\x00"
    await object_store.delete("fixtures/a")
    assert not await object_store.exists("fixtures/a")


async def test_temporal_answers(temporal_address: str) -> None:
    client = await Client.connect(temporal_address)
    assert (await client.count_workflows()).count >= 0
