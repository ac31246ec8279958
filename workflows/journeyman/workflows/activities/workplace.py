"""A thread's sandbox while one batch of tool calls runs in it."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.checkpoints.snapshots import Snapshot, SnapshotStore
from journeyman.platform.leases.service import Claim, Leases, leased
from journeyman.platform.sandboxes.port import Sandbox
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads.models import Thread
from journeyman.workflows.environment import TaskFurnishing
from journeyman.workflows.types import ThreadRef


@dataclass(frozen=True)
class Workplace:
    """A thread's sandbox."""

    sandbox: Sandbox
    thread: Thread

    @property
    def replaced(self) -> bool:
        """Whether it stands in for one that the agent believes it still has. True until a result has told the agent."""
        return self.thread.sandbox_id not in {None, self.sandbox.id}


class Workplaces:
    """Finds or makes the sandbox of a thread, and takes snapshots of it."""

    def __init__(self, leases: Leases, snapshots: SnapshotStore) -> None:
        self._leases = leases
        self._snapshots = snapshots

    @staticmethod
    async def held(session: AsyncSession, thread: Thread) -> str | None:
        """Id of the thread's sandbox, as far as the leases know."""
        return await leased(session, claim_of(thread))

    async def enter(self, thread: Thread, task: Task, lease_id: str | None = None) -> Workplace:
        """The thread's sandbox; a new one has the thread's newest snapshot in it. ``lease_id``: what :meth:`held` said."""
        held = await self._leases.acquire(
            claim_of(thread), thread.snapshot, TaskFurnishing(task.environment), lease_id=lease_id
        )
        return Workplace(held.sandbox, thread)

    async def capture(self, workplace: Workplace) -> Snapshot:
        """Snapshot the workspace against the thread's newest one; an unchanged one costs nothing and keeps its digest."""
        thread = workplace.thread
        return await self._snapshots.capture(workplace.sandbox, thread.project_id, thread.snapshot)

    @staticmethod
    async def note(session: AsyncSession, ref: ThreadRef, snapshot: Snapshot) -> None:
        """Make a captured snapshot the thread's newest."""
        await checkpoints.note_snapshot(session, ref.task.project_id, snapshot.digest, snapshot.files, snapshot.bytes)
        await session.execute(sa.update(Thread).where(Thread.id == ref.thread_id).values(snapshot=snapshot.digest))

    async def leave(self, thread: Thread) -> None:
        """Give the thread's sandbox back."""
        await self._leases.release(claim_of(thread))


def claim_of(thread: Thread) -> Claim:
    """Under which the thread's sandbox is leased."""
    return Claim(
        project_id=thread.project_id,
        task_id=thread.task_id,
        purpose=thread.id,
        thread_id=thread.id,
        subtask_id=thread.subtask_id,
    )
