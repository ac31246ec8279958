"""Leases on sandboxes, in the database; the machines that hold the sandboxes may vanish at any time."""

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.leases import repository
from journeyman.platform.leases.admission import Admission, Capacity
from journeyman.platform.leases.models import SandboxLease
from journeyman.platform.leases.nodes import DEAD_AFTER
from journeyman.platform.ledger.repository import charge_sandbox
from journeyman.platform.sandboxes.errors import NoRoomForSandbox, SandboxElsewhere, SandboxLost
from journeyman.platform.sandboxes.observation import observed_lease
from journeyman.platform.sandboxes.port import Sandbox, SandboxDriver, SandboxSpec


@dataclass(frozen=True)
class Claim:
    """The purpose of a sandbox. At most one is leased for each ``(task_id, purpose)``."""

    project_id: str
    task_id: str
    purpose: str
    thread_id: str | None = None
    subtask_id: str | None = None


@dataclass(frozen=True)
class LeasedSandbox:
    """A sandbox that answers. ``fresh``: it is new. ``lost_id``: the sandbox that it replaces, whose processes are gone."""

    sandbox: Sandbox
    fresh: bool
    lost_id: str | None = None


class Provisioner(Protocol):
    """Makes the sandboxes of a claim ready."""

    def spec(self, sandbox_id: str) -> SandboxSpec:
        """The spec of the sandbox to lease under this id."""
        ...

    async def provision(self, sandbox: Sandbox) -> bool:
        """Prepare a new sandbox that holds its snapshot; returns whether that may have changed the workspace."""
        ...


class Leases:
    """Leases sandboxes and replaces lost ones from the newest snapshot, never silently."""

    def __init__(self, database: Database, driver: SandboxDriver, snapshots: SnapshotStore, capacity: Capacity) -> None:
        self._database = database
        self._driver = driver
        self._admission = Admission(driver.node, capacity)
        self._snapshots = snapshots

    async def acquire(
        self, claim: Claim, snapshot: str | None, provisioner: Provisioner, *, lease_id: str | None = None
    ) -> LeasedSandbox:
        """The claim's sandbox; a new one with ``snapshot`` restored into it when there is none or it was lost.

        ``lease_id``: what :func:`leased` has just said, to save asking again. Every new lease is an event:
        ``sandbox.leased`` for the first, ``sandbox.replaced`` for one that follows a loss. Raises
        :class:`SandboxElsewhere` when the sandbox is on another machine that is alive, :class:`NoRoomForSandbox` while
        this machine has no memory for it, which is an event and stands in the task's row, and :class:`SandboxTooLarge`.
        """
        if lease_id is None:
            async with self._database.transaction() as session:
                lease_id = await leased(session, claim)
        if lease_id is not None:
            try:
                return LeasedSandbox(await self._driver.connect(lease_id), fresh=False)
            except SandboxLost:
                async with self._database.transaction() as session:
                    lease = await repository.get(session, lease_id)
                if lease.state == "leased":
                    await self.check_node(lease_id, lease.node)
                await self._driver.release(lease_id)
        spec = provisioner.spec(new_id("sandbox"))
        await self._admit(claim, spec, lease_id)
        try:
            with observed_lease("local"):
                sandbox = await self._driver.lease(spec)
        except BaseException:
            await self._free(spec.sandbox_id)
            raise
        try:
            if snapshot is not None:
                await self._snapshots.restore(sandbox, claim.project_id, snapshot)
                if await provisioner.provision(sandbox):
                    await self._snapshots.restore(sandbox, claim.project_id, snapshot)
            async with self._database.transaction() as session:
                lost_id = await self._record(session, claim, sandbox.id, snapshot, lease_id)
        except IntegrityError:
            # Another worker was faster: its sandbox is the one.
            await self._driver.release(sandbox.id)
            await self._free(sandbox.id)
            return await self.acquire(claim, snapshot, provisioner)
        except BaseException:
            await self._driver.release(sandbox.id)
            await self._free(sandbox.id)
            raise
        return LeasedSandbox(sandbox, fresh=True, lost_id=lost_id)

    async def _admit(self, claim: Claim, spec: SandboxSpec, lost_id: str | None) -> None:
        """Promise the new sandbox its memory, or say in the log and on the task that it waits for some."""
        try:
            async with self._database.transaction() as session:
                if lost_id is not None:
                    await repository.free_promise(session, lost_id)
                await self._admission.admit(session, spec.sandbox_id, spec.limits, alive_within=DEAD_AFTER)
                await repository.end_wait(session, claim.task_id, claim.purpose)
        except NoRoomForSandbox as error:
            async with self._database.transaction() as session:
                wait = {"purpose": claim.purpose, "reason": error.message, **error.details}
                if await repository.note_wait(session, claim.task_id, wait):
                    await append(
                        session,
                        claim.task_id,
                        EventType.SANDBOX_QUEUED,
                        wait,
                        thread_id=claim.thread_id,
                        subtask_id=claim.subtask_id,
                        step_key=f"{claim.task_id}:{claim.purpose}:queued",
                    )
            raise

    async def _free(self, sandbox_id: str) -> None:
        async with self._database.transaction() as session:
            await repository.free_promise(session, sandbox_id)

    async def check_node(self, sandbox_id: str, node: str | None) -> None:
        """Raise :class:`SandboxElsewhere` if the sandbox's ``node`` is another one than this, and alive."""
        if node is None or node == self._driver.node:
            return
        async with self._database.transaction() as session:
            if await repository.is_alive(session, node, DEAD_AFTER):
                raise SandboxElsewhere(
                    f"sandbox {sandbox_id} is on node {node}, whose workers go on with it", node=node
                )

    async def _record(
        self, session: AsyncSession, claim: Claim, sandbox_id: str, snapshot: str | None, lost_id: str | None
    ) -> str | None:
        if lost_id is not None:
            leased_at = await repository.mark_lost(session, lost_id)
            if leased_at is not None:
                await _note_end(session, claim, lost_id, (now() - leased_at).total_seconds(), lost=True)
        newest = await repository.newest(session, claim.task_id, claim.purpose)
        generation = 1 if newest is None else newest.generation + 1
        replaced = newest is not None and newest.state == "lost"
        await repository.add(
            session,
            SandboxLease(
                id=sandbox_id,
                project_id=claim.project_id,
                task_id=claim.task_id,
                purpose=claim.purpose,
                generation=generation,
                state="leased",
                snapshot=snapshot,
                node=self._driver.node,
                leased_at=now(),
            ),
        )
        data = {"sandbox_id": sandbox_id, "purpose": claim.purpose, "snapshot": snapshot, "generation": generation}
        if replaced and newest is not None:
            data["lost_sandbox_id"] = newest.id
            data["lost"] = "running processes, /tmp, and changes made after the snapshot"
        await append(
            session,
            claim.task_id,
            EventType.SANDBOX_REPLACED if replaced else EventType.SANDBOX_LEASED,
            data,
            thread_id=claim.thread_id,
            subtask_id=claim.subtask_id,
        )
        return newest.id if replaced and newest is not None else None

    async def release(self, claim: Claim) -> None:
        """End the claim's sandbox, if it has one: noted first, so that a crash in between leaves no lease on a dead one."""
        async with self._database.transaction() as session:
            lease = await repository.leased(session, claim.task_id, claim.purpose)
            if lease is None:
                return
            await self._end(session, lease)
        await self._driver.release(lease.id)

    async def release_all(self, task_id: str) -> None:
        """End every sandbox of the task."""
        async with self._database.transaction() as session:
            leases = await repository.all_leased(session, task_id)
            for lease in leases:
                await self._end(session, lease)
        for lease in leases:
            await self._driver.release(lease.id)

    async def _end(self, session: AsyncSession, lease: SandboxLease) -> None:
        lease.state = "released"
        await repository.free_promise(session, lease.id)
        lease.ended_at = moment = now()
        claim = Claim(lease.project_id, lease.task_id, lease.purpose)
        await _note_end(session, claim, lease.id, (moment - lease.leased_at).total_seconds())


async def _note_end(
    session: AsyncSession, claim: Claim, sandbox_id: str, seconds: float, *, lost: bool = False
) -> None:
    """The end of a sandbox, in the ledger and in the log: of a lost one, when that was noticed."""
    await charge_sandbox(
        session,
        sandbox_id,
        project_id=claim.project_id,
        task_id=claim.task_id,
        thread_id=claim.thread_id,
        seconds=seconds,
    )
    await append(
        session,
        claim.task_id,
        EventType.SANDBOX_RELEASED,
        {
            "sandbox_id": sandbox_id,
            "purpose": claim.purpose,
            "seconds": round(seconds, 3),
            **({"lost": True} if lost else {}),
        },
        thread_id=claim.thread_id,
        subtask_id=claim.subtask_id,
        step_key=step_keys.part(sandbox_id, "released"),
    )


async def leased(session: AsyncSession, claim: Claim) -> str | None:
    """Id of the claim's sandbox, whether it still answers or not."""
    lease = await repository.leased(session, claim.task_id, claim.purpose)
    return None if lease is None else lease.id
