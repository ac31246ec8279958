"""Merging approved work into the task's head."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession
from temporalio import activity

from journeyman.agents.context import merge_conflict_note
from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.checkpoints.merge import Merged, merge
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.leases.service import Leases
from journeyman.platform.plans import repository as plans
from journeyman.platform.tasks.repository import lock_task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from journeyman.workflows.activities.thread_sandbox import claim_of
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import EndSubtask, Integration


@dataclass(frozen=True)
class _Sides:
    """What is to be merged: the Coder's work, what it began with, and the head that others may have moved meanwhile."""

    base: str
    head: str
    work: str


class IntegrationActivities:
    def __init__(self, database: Database, leases: Leases, snapshots: SnapshotStore) -> None:
        self._database = database
        self._leases = leases
        self._snapshots = snapshots

    @activity.defn
    @beating
    async def end_subtask(self, end: EndSubtask) -> Integration:
        """Merge the subtask's approved work into the task's head, or store why it was given up; then release its sandbox.

        Work that conflicts goes back to its Coder: the workspace then holds both sides, with the conflicts marked.
        """
        if not end.completed:
            async with self._database.transaction() as session:
                await self._close(session, end, None)
            await self._release(end)
            return Integration()
        while True:
            async with self._database.transaction() as session:
                conflict = await threads.is_stored(session, _conflict_key(end))
                sides = await self._sides(session, end)
            if conflict:
                return Integration(conflict=True)
            merged = await self._merge(end, sides)
            if merged is not None and merged.conflicts:
                await self._return_to_coder(end, sides, merged)
                return Integration(conflict=True)
            if await self._update_head(end, sides, merged):
                await self._release(end)
                return Integration()

    @staticmethod
    async def _sides(session: AsyncSession, end: EndSubtask) -> _Sides:
        task = await lock_task(session, end.task.task_id)
        thread = await threads.get_thread(session, end.coder)
        threads.refuse_superseded(thread)
        work = thread.snapshot or ""
        base = thread.base_snapshot or ""
        return _Sides(base=base, head=task.head_snapshot or base, work=work)

    async def _merge(self, end: EndSubtask, sides: _Sides) -> Merged | None:
        """Merge the two sides; None if the head is what the Coder began with, or contains the work already."""
        if sides.head in {sides.base, sides.work}:
            return None
        return await merge(
            self._snapshots,
            end.task.project_id,
            base=sides.base,
            ours=sides.head,
            theirs=sides.work,
            ours_label="merged by other subtasks",
            theirs_label=f"subtask {end.subtask_id}",
        )

    async def _update_head(self, end: EndSubtask, sides: _Sides, merged: Merged | None) -> bool:
        """Make the result the task's head. False when the head has moved since it was read: merge again."""
        head = sides.work if merged is None else merged.snapshot.digest
        async with self._database.transaction() as session:
            task = await lock_task(session, end.task.task_id)
            threads.refuse_superseded(await threads.get_thread(session, end.coder))
            if (task.head_snapshot or sides.base) != sides.head:
                return False
            task.head_snapshot = head
            if merged is not None:
                await self._store_snapshot(session, end, merged)
                await append(
                    session,
                    task.id,
                    EventType.SUBTASK_MERGED,
                    {"subtask_id": end.subtask_id, "head": head, "onto": sides.head, "work": sides.work},
                    thread_id=end.coder,
                    subtask_id=end.subtask_id,
                    step_key=step_keys.part(end.coder, "merged"),
                )
            await self._close(session, end, head)
        return True

    async def _return_to_coder(self, end: EndSubtask, sides: _Sides, merged: Merged) -> None:
        """Give the Coder a workspace that holds both sides. Its old sandbox ends first: the next one holds the merge."""
        await self._release(end)
        async with self._database.transaction() as session:
            await append(
                session,
                end.task.task_id,
                EventType.SUBTASK_CONFLICTED,
                {
                    "subtask_id": end.subtask_id,
                    "conflicts": [{"path": item.path, "kind": item.kind} for item in merged.conflicts],
                    "head": sides.head,
                },
                thread_id=end.coder,
                subtask_id=end.subtask_id,
                step_key=step_keys.part(_conflict_key(end), "event"),
            )
            await self._store_snapshot(session, end, merged)
            note = merge_conflict_note([(item.path, item.kind) for item in merged.conflicts])
            await threads.append_message(session, end.coder, _conflict_key(end), note)
            thread: Thread = await threads.get_thread(session, end.coder)
            thread.base_snapshot = sides.head
            thread.snapshot = merged.snapshot.digest
            thread.sandbox_id = None

    @staticmethod
    async def _store_snapshot(session: AsyncSession, end: EndSubtask, merged: Merged) -> None:
        made = merged.snapshot
        await checkpoints.note_snapshot(session, end.task.project_id, made.digest, made.files, made.bytes)

    @staticmethod
    async def _close(session: AsyncSession, end: EndSubtask, head: str | None) -> None:
        """Store the end of the subtask, once."""
        await lock_task(session, end.task.task_id)
        threads.refuse_superseded(await threads.get_thread(session, end.coder))
        subtask = await plans.get_subtask(session, end.task.task_id, end.revision, end.subtask_id)
        if subtask.state != "running":
            return
        thread = await threads.get_thread(session, end.coder)
        subtask.state = "completed" if end.completed else "failed"
        subtask.snapshot = thread.snapshot
        await append(
            session,
            end.task.task_id,
            EventType.SUBTASK_COMPLETED if end.completed else EventType.SUBTASK_FAILED,
            {"subtask_id": end.subtask_id, "rounds": subtask.rounds, "snapshot": thread.snapshot}
            | ({"head": head} if head else {})
            | ({"problem": end.problem} if end.problem else {}),
            thread_id=end.coder,
            subtask_id=end.subtask_id,
            step_key=step_keys.part(end.coder, "end"),
        )

    async def _release(self, end: EndSubtask) -> None:
        async with self._database.transaction() as session:
            thread = await threads.get_thread(session, end.coder)
        await self._leases.release(claim_of(thread))


def _conflict_key(end: EndSubtask) -> str:
    return step_keys.part(end.coder, "conflict", end.round)
