"""Two machines with sandboxes on one set of leases: each is a driver with a root of its own."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.models import Event
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.leases.admission import Capacity, machine_memory
from journeyman.platform.leases.models import SandboxLease, SandboxNode
from journeyman.platform.leases.nodes import DEAD_AFTER, NodeKeeper
from journeyman.platform.leases.service import Claim, Leases
from journeyman.platform.sandboxes.errors import SandboxElsewhere
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.registry import reap
from support.rows import make_project, make_task
from support.sandboxes import Bare, shell

CAPACITY = Capacity(machine_memory())


class Machine:
    def __init__(self, database: Database, store: S3ObjectStore) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="jm-sbx-"))
        self.driver = LocalSandboxDriver(self.root)
        self.leases = Leases(database, self.driver, SnapshotStore(store), CAPACITY)
        self.keeper = NodeKeeper(database, self.driver, CAPACITY)


@pytest.fixture
async def machines(database: Database, object_store: S3ObjectStore) -> AsyncIterator[tuple[Machine, Machine]]:
    pair = Machine(database, object_store), Machine(database, object_store)
    for machine in pair:
        await machine.keeper.beat()
    yield pair
    for machine in pair:
        reap(machine.root, set())
        await machine.driver.close()
        shutil.rmtree(machine.root, ignore_errors=True)


@pytest.fixture
async def claim(database: Database) -> Claim:
    project_id = await make_project(database)
    return Claim(project_id, await make_task(database, project_id), "work")


async def silence(database: Database, machine: Machine) -> None:
    """As if nothing had been heard of the machine for too long."""
    async with database.transaction() as session:
        await session.execute(
            sa.update(SandboxNode)
            .where(SandboxNode.id == machine.driver.node)
            .values(seen_at=SandboxNode.seen_at - DEAD_AFTER)
        )


async def types(database: Database, claim: Claim) -> list[str]:
    async with database.transaction() as session:
        return list(
            await session.scalars(sa.select(Event.type).where(Event.task_id == claim.task_id).order_by(Event.seq))
        )


def test_a_machine_keeps_its_name(tmp_path: Path) -> None:
    names = {LocalSandboxDriver(tmp_path / "root").node for _ in range(3)}
    assert len(names) == 1
    assert LocalSandboxDriver(tmp_path / "other").node not in names


async def test_a_living_sandbox_of_another_machine_is_left_alone(
    machines: tuple[Machine, Machine], claim: Claim, database: Database
) -> None:
    here, there = machines
    held = await here.leases.acquire(claim, None, Bare())
    await shell(held.sandbox, "echo work > /workspace/file")
    for _ in range(3):
        with pytest.raises(SandboxElsewhere) as caught:
            await there.leases.acquire(claim, None, Bare())
        assert not caught.value.retryable
        assert caught.value.details == {"node": here.driver.node}
        again = await here.leases.acquire(claim, None, Bare())
        assert (again.fresh, again.sandbox.id) == (False, held.sandbox.id)
    assert await again.sandbox.read_file("/workspace/file") == b"work\n"
    assert await types(database, claim) == ["sandbox.leased"]
    assert await there.driver.list_ids() == []


async def test_a_sandbox_of_a_dead_machine_is_replaced(
    machines: tuple[Machine, Machine], claim: Claim, database: Database
) -> None:
    here, there = machines
    held = await here.leases.acquire(claim, None, Bare())
    await silence(database, here)
    replaced = await there.leases.acquire(claim, None, Bare())
    assert (replaced.fresh, replaced.lost_id) == (True, held.sandbox.id)
    assert await types(database, claim) == ["sandbox.leased", "sandbox.released", "sandbox.replaced"]
    # The first one comes back: it leaves the claim to the other, and ends what it has left of it.
    await here.keeper.beat()
    with pytest.raises(SandboxElsewhere):
        await here.leases.acquire(claim, None, Bare())
    assert await here.keeper.tidy() == []
    await age(database, held.sandbox.id)
    assert await here.keeper.tidy() == [held.sandbox.id]
    assert await here.driver.list_ids() == []
    assert await there.keeper.tidy() == []
    await replaced.sandbox.ping()


async def test_a_sandbox_that_is_lost_on_its_own_machine_is_replaced_at_once(
    machines: tuple[Machine, Machine], claim: Claim
) -> None:
    here, there = machines
    held = await here.leases.acquire(claim, None, Bare())
    await here.driver.release(held.sandbox.id)
    with pytest.raises(SandboxElsewhere):
        await there.leases.acquire(claim, None, Bare())
    assert (await here.leases.acquire(claim, None, Bare())).lost_id == held.sandbox.id


async def test_a_release_from_elsewhere_ends_the_sandbox(
    machines: tuple[Machine, Machine], claim: Claim, database: Database
) -> None:
    here, there = machines
    held = await here.leases.acquire(claim, None, Bare())
    await there.leases.release_all(claim.task_id)
    assert await types(database, claim) == ["sandbox.leased", "sandbox.released"]
    await age(database, held.sandbox.id)
    keeping = asyncio.create_task(here.keeper.keep())
    try:
        async with asyncio.timeout(10):
            while await here.driver.list_ids():
                await asyncio.sleep(0.05)
    finally:
        keeping.cancel()


async def age(database: Database, sandbox_id: str) -> None:
    """As if its lease had ended some time ago."""
    async with database.transaction() as session:
        await session.execute(
            sa.update(SandboxLease).where(SandboxLease.id == sandbox_id).values(ended_at=now() - timedelta(minutes=1))
        )
