"""The hand-over of a task: patch, bundle, report, files under /artifacts, and memories."""

import mimetypes
from collections.abc import Sequence
from typing import Any, Final

from temporalio import activity

from journeyman.agents.arguments import SubmitReview
from journeyman.agents.roles import Role
from journeyman.platform.artifacts import queries
from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.artifacts.models import Receipt
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.object_store import ObjectStore, put_blob
from journeyman.platform.memory import service as memories
from journeyman.platform.memory.models import Kind
from journeyman.platform.plans import repository as plans
from journeyman.platform.plans.models import Plan, Subtask
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads import repository as threads
from journeyman.workflows.activities.conversation import submission
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import TaskRef

ARTIFACTS_PREFIX: Final = "artifacts/"


class HandoverActivities:
    def __init__(self, database: Database, store: ObjectStore, snapshots: SnapshotStore) -> None:
        self._database = database
        self._store = store
        self._snapshots = snapshots

    @activity.defn
    @beating
    async def hand_over(self, ref: TaskRef) -> None:
        """Store the task's artifacts. A repetition stores none twice."""
        async with self._database.transaction() as session:
            task = await session.get_one(Task, ref.task_id)
        if task.head_snapshot is None or task.initial_snapshot is None:
            return
        changes = await self._snapshots.diff(task.project_id, task.initial_snapshot, task.head_snapshot)
        patch = "".join(change.patch for change in changes if not change.path.startswith(ARTIFACTS_PREFIX))
        if patch:
            await self._add(task, "patch", "changes.patch", "text/x-diff", patch.encode("utf-8", "surrogateescape"))
        bundle = await self._snapshots.to_archive(task.project_id, task.head_snapshot)
        await self._add(task, "bundle", "workspace.tar.gz", "application/gzip", bundle)
        manifest = await self._snapshots.manifest(task.project_id, task.head_snapshot)
        for entry in manifest.entries:
            if entry.kind == "file" and entry.path.startswith(ARTIFACTS_PREFIX):
                data = await self._snapshots.read(task.project_id, task.head_snapshot, entry.path)
                name = entry.path.removeprefix(ARTIFACTS_PREFIX)
                media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
                await self._add(task, "file", name, media_type, data)
        report = await self._report(task)
        await self._add(task, "report", "report.md", "text/markdown", report.encode("utf-8", "replace"))

    async def _add(self, task: Task, kind: str, name: str, media_type: str, data: bytes) -> None:
        digest = await put_blob(self._store, task.project_id, data)
        async with self._database.transaction() as session:
            await artifacts.add(
                session,
                project_id=task.project_id,
                task_id=task.id,
                kind=kind,
                name=name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\x00", "\u2400"),
                media_type=media_type,
                size=len(data),
                digest=digest,
                # What was handed over just before a rewind is history: the next hand-over is another one.
                key=f"{task.epoch}:{name}" if task.epoch else name,
            )

    async def _report(self, task: Task) -> str:
        async with self._database.transaction() as session:
            receipts = await queries.receipts_of(session, task.id)
            subtasks = await plans.subtasks_in_force(session, task.id)
        return report(task, subtasks, receipts)

    @activity.defn
    @beating
    async def reflect(self, ref: TaskRef) -> None:
        """Keep what reviews found wrong for later tasks, once the task has ended. Nothing of its verification is kept."""
        async with self._database.transaction() as session:
            lessons: list[tuple[Kind, str]] = []
            for thread_id in await threads.ids_in_force(session, ref.task_id, Role.REVIEWER):
                lessons.extend(_mistakes(await threads.bodies(session, thread_id)))
            await memories.reflect(session, ref.project_id, ref.task_id, lessons)


def _mistakes(messages: list[dict[str, Any]]) -> list[tuple[Kind, str]]:
    review = submission(Role.REVIEWER, messages)
    if not isinstance(review, SubmitReview):
        return []
    return [
        ("lesson", f"A review found: {finding.message}" + (f" ({finding.path})" if finding.path else ""))
        for finding in review.findings
        if finding.severity != "minor"
    ]


def report(task: Task, subtasks: Sequence[tuple[Plan, Subtask]], receipts: Sequence[Receipt]) -> str:
    """The task in Markdown: what was asked, what was done, what was verified."""
    lines = [f"# {task.title}", "", "## Asked", "", task.instruction, "", "## Done", ""]
    for plan, row in subtasks:
        title = next(entry["title"] for entry in plan.subtasks if entry["id"] == row.subtask_id)
        lines.append(f"### {row.subtask_id}: {title} ({row.state}, plan {plan.revision}, {row.rounds} reviews)")
        lines.extend(["", row.summary or "No summary.", ""])
    lines.extend(["## Verified by the platform", ""])
    if not receipts:
        lines.append("Nothing: the task came without acceptance commands.")
    for receipt in receipts:
        mark = "passed" if receipt.passed else f"failed with exit code {receipt.exit_code}"
        lines.append(f"- attempt {receipt.attempt}: `{receipt.command}` {mark} in {receipt.duration_s} s")
    return "\n".join(lines) + "\n"
