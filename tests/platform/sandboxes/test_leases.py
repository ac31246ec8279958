"""Leases over real sandboxes: each one that was leased has its end in the log and in the ledger."""

import asyncio

import pytest
import sqlalchemy as sa

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.models import Event
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.leases.admission import Capacity, machine_memory
from journeyman.platform.leases.models import SandboxLease
from journeyman.platform.leases.service import Claim, Leases
from journeyman.platform.ledger.models import LedgerEntry
from journeyman.platform.sandboxes.port import SandboxDriver
from support.rows import make_project, make_task
from support.sandboxes import Bare


@pytest.fixture
def leases(database: Database, driver: SandboxDriver, object_store: S3ObjectStore) -> Leases:
    return Leases(database, driver, SnapshotStore(object_store), Capacity(machine_memory()))


@pytest.fixture
async def claim(database: Database) -> Claim:
    project_id = await make_project(database)
    return Claim(project_id, await make_task(database, project_id), "work")


async def log(database: Database, task_id: str) -> list[tuple[str, dict]]:
    async with database.transaction() as session:
        events = await session.scalars(sa.select(Event).where(Event.task_id == task_id).order_by(Event.seq))
        return [(event.type, event.data) for event in events]


async def ledger(database: Database, task_id: str) -> dict[str, float]:
    async with database.transaction() as session:
        entries = await session.scalars(sa.select(LedgerEntry).where(LedgerEntry.task_id == task_id))
        return {entry.request_id: float(entry.seconds) for entry in entries}


async def test_a_lost_sandbox_has_its_end(leases: Leases, claim: Claim, database: Database, driver: SandboxDriver):
    held = [await leases.acquire(claim, None, Bare()) for _ in range(2)]
    assert [one.fresh for one in held] == [True, False]
    first = held[0].sandbox.id
    await driver.release(first)
    # Two workers notice at once.
    replaced = await asyncio.gather(*(leases.acquire(claim, None, Bare()) for _ in range(2)))
    second = replaced[0].sandbox.id
    assert [one.sandbox.id for one in replaced] == [second, second]
    assert {one.lost_id for one in replaced if one.fresh} == {first}
    await leases.release(claim)
    await leases.release(claim)
    events = await log(database, claim.task_id)
    assert [(kind, data["sandbox_id"]) for kind, data in events] == [
        ("sandbox.leased", first),
        ("sandbox.released", first),
        ("sandbox.replaced", second),
        ("sandbox.released", second),
    ]
    ends = [data for kind, data in events if kind == "sandbox.released"]
    assert [data.get("lost") for data in ends] == [True, None]
    assert await ledger(database, claim.task_id) == {data["sandbox_id"]: data["seconds"] for data in ends}
    async with database.transaction() as session:
        rows = await session.scalars(sa.select(SandboxLease).where(SandboxLease.task_id == claim.task_id))
        assert {row.id: row.state for row in rows} == {first: "lost", second: "released"}
    assert not {first, second} & set(await driver.list_ids())


async def test_a_sandbox_that_is_lost_at_the_end_has_one_too(
    leases: Leases, claim: Claim, database: Database, driver: SandboxDriver
):
    held = await leases.acquire(claim, None, Bare())
    await driver.release(held.sandbox.id)
    await leases.release_all(claim.task_id)
    await leases.release_all(claim.task_id)
    assert [kind for kind, _ in await log(database, claim.task_id)] == ["sandbox.leased", "sandbox.released"]
    assert list(await ledger(database, claim.task_id)) == [held.sandbox.id]
