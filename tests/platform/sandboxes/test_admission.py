"""Sandboxes are promised no more memory than their machine has: real leases, rows and sandboxes."""

import asyncio

import pytest
import sqlalchemy as sa

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.models import Event
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.leases import repository
from journeyman.platform.leases.admission import FORGOTTEN_AFTER, Capacity, machine_memory
from journeyman.platform.leases.models import SandboxNode, SandboxPromise
from journeyman.platform.leases.nodes import NodeKeeper
from journeyman.platform.leases.service import Claim, Leases
from journeyman.platform.sandboxes.errors import NoRoomForSandbox, SandboxTooLarge
from journeyman.platform.sandboxes.port import GIB, MIB, Limits, SandboxDriver
from journeyman.platform.tasks.models import Task
from support.rows import make_project, make_task
from support.sandboxes import SMALL, Bare

NEEDED = SMALL.memory_bytes + SMALL.disk_bytes
"""What a sandbox of the tests counts without overcommit."""


@pytest.fixture(autouse=True)
async def _empty_account(database: Database, driver: SandboxDriver) -> None:
    async with database.transaction() as session:
        await session.execute(sa.delete(SandboxPromise))
        await session.execute(sa.delete(SandboxNode))


def leases_of(database: Database, driver: SandboxDriver, store: S3ObjectStore, capacity: Capacity) -> Leases:
    return Leases(database, driver, SnapshotStore(store), capacity)


async def claims(database: Database, count: int) -> list[Claim]:
    project_id = await make_project(database)
    return [Claim(project_id, await make_task(database, project_id), "work") for _ in range(count)]


async def promised(database: Database) -> int:
    async with database.transaction() as session:
        return int((await session.scalar(sa.select(sa.func.sum(SandboxPromise.bytes)))) or 0)


async def wait_of(database: Database, claim: Claim) -> tuple[dict | None, list[str]]:
    async with database.transaction() as session:
        events = await session.scalars(sa.select(Event.type).where(Event.task_id == claim.task_id).order_by(Event.seq))
        return (await session.get_one(Task, claim.task_id)).sandbox_wait, list(events)


async def test_leases_at_once_share_what_there_is(
    database: Database, driver: SandboxDriver, object_store: S3ObjectStore
) -> None:
    capacity = Capacity(3 * NEEDED + 1, overcommit=1)
    workers = [leases_of(database, driver, object_store, capacity) for _ in range(2)]
    asking = await claims(database, 6)
    results = await asyncio.gather(
        *(workers[index % 2].acquire(claim, None, Bare()) for index, claim in enumerate(asking)), return_exceptions=True
    )
    refused = [claim for claim, result in zip(asking, results, strict=True) if isinstance(result, NoRoomForSandbox)]
    admitted = [claim for claim in asking if claim not in refused]
    assert (len(admitted), len(refused)) == (3, 3)
    assert await promised(database) == 3 * NEEDED
    for _ in range(2):
        with pytest.raises(NoRoomForSandbox, match="waits for memory"):
            await workers[0].acquire(refused[0], None, Bare())
    wait, events = await wait_of(database, refused[0])
    assert wait is not None
    assert (wait["purpose"], wait["needed_bytes"], wait["capacity_bytes"]) == ("work", NEEDED, 3 * NEEDED + 1)
    assert events == ["sandbox.queued"], "one wait is one event"
    await workers[1].release(admitted[0])
    await workers[0].acquire(refused[0], None, Bare())
    assert await wait_of(database, refused[0]) == (None, ["sandbox.queued", "sandbox.leased"])
    for claim in asking:
        await workers[0].release_all(claim.task_id)
    assert await promised(database) == 0


async def test_a_replaced_sandbox_takes_the_place_of_the_lost_one(
    database: Database, driver: SandboxDriver, object_store: S3ObjectStore
) -> None:
    leases = leases_of(database, driver, object_store, Capacity(NEEDED, overcommit=1))
    [claim] = await claims(database, 1)
    held = await leases.acquire(claim, None, Bare())
    await driver.release(held.sandbox.id)
    replaced = await leases.acquire(claim, None, Bare())
    assert replaced.fresh
    await leases.release(claim)
    assert await promised(database) == 0


async def test_what_could_not_be_made_gives_its_memory_back(
    database: Database, driver: SandboxDriver, object_store: S3ObjectStore
) -> None:
    leases = leases_of(database, driver, object_store, Capacity(NEEDED, overcommit=1))
    [claim] = await claims(database, 1)
    snapshot = "0" * 64  # there is none: the restore fails
    with pytest.raises(Exception, match=snapshot):
        await leases.acquire(claim, snapshot, Bare())
    assert await promised(database) == 0


async def test_promises_of_a_dead_worker_are_freed(
    database: Database, driver: SandboxDriver, object_store: S3ObjectStore
) -> None:
    capacity = Capacity(4 * NEEDED, overcommit=1)
    leases = leases_of(database, driver, object_store, capacity)
    [claim] = await claims(database, 1)
    await leases.acquire(claim, None, Bare())
    assert driver.node is not None
    async with database.transaction() as session:
        for _ in range(2):
            await repository.add_promise(session, new_id("sandbox"), driver.node, NEEDED)
    keeper = NodeKeeper(database, driver, capacity)
    await keeper.tidy()
    assert await promised(database) == 3 * NEEDED, "a sandbox may still be on its way"
    async with database.transaction() as session:
        await session.execute(sa.update(SandboxPromise).values(made_at=sa.func.clock_timestamp() - 2 * FORGOTTEN_AFTER))
    await keeper.tidy()
    assert await promised(database) == NEEDED, "the one that lives keeps its own"
    await leases.release(claim)


async def test_what_no_machine_could_hold_is_refused_and_what_another_could_is_left_to_it(
    database: Database, driver: SandboxDriver, object_store: S3ObjectStore
) -> None:
    capacity = Capacity(NEEDED - 1, overcommit=1)
    await NodeKeeper(database, driver, capacity).beat()
    leases = leases_of(database, driver, object_store, capacity)
    [claim] = await claims(database, 1)
    with pytest.raises(SandboxTooLarge, match="no machine has more"):
        await leases.acquire(claim, None, Bare())
    async with database.transaction() as session:
        await repository.note_alive(session, "larger", NEEDED)
    with pytest.raises(NoRoomForSandbox):
        await leases.acquire(claim, None, Bare())


async def test_the_machines_free_memory_counts_whatever_was_promised(
    database: Database, driver: SandboxDriver, object_store: S3ObjectStore
) -> None:
    leases = leases_of(database, driver, object_store, Capacity(machine_memory(), headroom_bytes=machine_memory()))
    [claim] = await claims(database, 1)
    with pytest.raises(NoRoomForSandbox):
        await leases.acquire(claim, None, Bare())


def test_the_default_size_is_overcommitted_and_what_is_beyond_counts_in_full() -> None:
    capacity = Capacity(24 * GIB)
    assert capacity.counted(Limits()) == 4 * GIB // 100
    assert capacity.counted(Limits(memory_bytes=8 * GIB, disk_bytes=8 * GIB)) == 4 * GIB // 100 + 12 * GIB
    assert capacity.counted(Limits(memory_bytes=64 * MIB, disk_bytes=16 * MIB)) == 80 * MIB // 100
    load = 50 * 4 * 2 * capacity.counted(Limits())
    assert load < capacity.memory_bytes, "fifty tasks with four subtasks each, a Coder and a Reviewer for each"
