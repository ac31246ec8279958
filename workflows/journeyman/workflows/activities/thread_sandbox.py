"""The sandbox in which a thread's tool calls run."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.checkpoints.snapshots import Snapshot, SnapshotStore
from journeyman.platform.leases.service import Claim, Leases, leased
from journeyman.platform.sandboxes.port import Sandbox
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from journeyman.workflows.environment import TaskProvisioner
from journeyman.workflows.types import ThreadRef


@dataclass(frozen=True)
class ThreadSandbox:
    """A sandbox that answers, leased for the thread."""

    sandbox: Sandbox
    thread: Thread

    @property
    def replaced(self) -> bool:
        """Whether it replaces one that the agent does not know to be lost yet. A stored tool result that says so ends this."""
        return self.thread.sandbox_id not in {None, self.sandbox.id}


class ThreadSandboxes:
    """Leases, snapshots and releases the sandboxes of threads."""

    def __init__(self, leases: Leases, snapshots: SnapshotStore) -> None:
        self._leases = leases
        self._snapshots = snapshots

    @staticmethod
    async def leased_id(session: AsyncSession, thread: Thread) -> str | None:
        """Id of the thread's sandbox according to the leases, whether it answers or not."""
        return await leased(session, claim_of(thread))

    async def check_node(self, sandbox_id: str, node: str | None) -> None:
        """Raise :class:`~journeyman.platform.sandboxes.errors.SandboxElsewhere` for a sandbox on another node that is alive."""
        await self._leases.check_node(sandbox_id, node)

    async def acquire(self, thread: Thread, task: Task, lease_id: str | None = None) -> ThreadSandbox:
        """The thread's sandbox; a new one holds the thread's newest snapshot. ``lease_id``: from :meth:`leased_id`, if asked.

        Raises :class:`~journeyman.platform.sandboxes.errors.SandboxElsewhere` for a sandbox on another node that is alive.
        """
        held = await self._leases.acquire(
            claim_of(thread), thread.snapshot, TaskProvisioner(task.environment), lease_id=lease_id
        )
        return ThreadSandbox(held.sandbox, thread)

    async def capture(self, used: ThreadSandbox) -> Snapshot:
        """Snapshot the workspace against the thread's newest snapshot; an unchanged workspace keeps its digest."""
        thread = used.thread
        return await self._snapshots.capture(used.sandbox, thread.project_id, thread.snapshot)

    @staticmethod
    async def store_snapshot(session: AsyncSession, ref: ThreadRef, snapshot: Snapshot) -> None:
        """Make a captured snapshot the thread's newest."""
        await checkpoints.note_snapshot(session, ref.task.project_id, snapshot.digest, snapshot.files, snapshot.bytes)
        await threads.note_snapshot(session, ref.thread_id, snapshot.digest)

    async def release(self, thread: Thread) -> None:
        """End the thread's sandbox, if it has one."""
        await self._leases.release(claim_of(thread))


def claim_of(thread: Thread) -> Claim:
    """The claim under which the thread's sandbox is leased."""
    return Claim(
        project_id=thread.project_id,
        task_id=thread.task_id,
        purpose=thread.id,
        thread_id=thread.id,
        subtask_id=thread.subtask_id,
    )
