"""A task's workspace at any point: which files, what is in them, what changed between two points."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints import queries
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.checkpoints.paths import ROOT, normal, relative
from journeyman.platform.checkpoints.schemas import CheckpointFilter
from journeyman.platform.checkpoints.snapshots import FileChange, SnapshotStore
from journeyman.platform.http.fields import refuse
from journeyman.platform.http.pagination import (
    Position,
    decode_cursor,
    page_of,
    seq_in,
)
from journeyman.platform.kit.errors import NotFound
from journeyman.platform.kit.ids import is_id
from journeyman.platform.sandboxes.port import TreeEntry
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.models import Task

MAX_FILES: Final = 20_000


async def page(
    session: AsyncSession, project_id: str, task_id: str, wanted: CheckpointFilter
) -> tuple[list[Checkpoint], str | None]:
    """One page, newest first, and the cursor of the next one."""
    position = decode_cursor(wanted.cursor)
    await tasks.read(session, project_id, task_id)
    before = None if position is None else seq_in(position)
    found = await queries.page(session, task_id, before_seq=before, limit=wanted.limit + 1)
    return page_of(found, wanted.limit, lambda row: Position(row.created_at, str(row.event_seq)))


async def checkpoint(session: AsyncSession, task_id: str, checkpoint_id: str) -> Checkpoint:
    """The task's checkpoint. Raises :class:`NotFound`, also for another task's."""
    found = await queries.checkpoint(session, task_id, checkpoint_id) if is_id("checkpoint", checkpoint_id) else None
    if found is None:
        raise NotFound(f"The task has no checkpoint {checkpoint_id[:80]}.", code="checkpoint_not_found")
    return found


async def snapshot_at(session: AsyncSession, project_id: str, task_id: str, point: str, *, field: str) -> str:
    """The digest of the snapshot at a checkpoint or at ``initial``, ``head`` or ``latest``. Raises :class:`NotFound`."""
    task = await tasks.read(session, project_id, task_id)
    digest = await _digest_at(session, task, point, field)
    if digest is None:
        raise NotFound(
            "The task has no workspace yet: its environment is not prepared.", code="no_workspace_yet", state=task.state
        )
    return digest


async def _digest_at(session: AsyncSession, task: Task, point: str, field: str) -> str | None:
    match point:
        case "initial":
            return task.initial_snapshot
        case "head":
            return task.head_snapshot or task.initial_snapshot
        case "latest":
            newest = await queries.newest(session, task)
            return newest.snapshot if newest is not None else task.head_snapshot or task.initial_snapshot
    if not is_id("checkpoint", point):
        raise refuse(field, "must be the id of a checkpoint, or `initial`, `head` or `latest`.")
    return (await checkpoint(session, task.id, point)).snapshot


async def files(snapshots: SnapshotStore, project_id: str, digest: str, path: str) -> tuple[list[TreeEntry], bool]:
    """The entries at and below a path of the workspace, in order; whether some were left out. Raises :class:`NotFound`."""
    wanted = normal(path)
    manifest = await snapshots.manifest(project_id, digest)
    found = [
        entry
        for entry in manifest.entries
        if entry.path.startswith(ROOT)
        and (not wanted or (shown := relative(entry.path)) == wanted or shown.startswith(wanted + "/"))
    ]
    if wanted and not found:
        raise NotFound(f"The workspace has no {wanted[:200]} at this point.")
    found.sort(key=lambda entry: entry.path)
    return found[:MAX_FILES], len(found) > MAX_FILES


async def content(snapshots: SnapshotStore, project_id: str, digest: str, path: str) -> TreeEntry:
    """The file at a path. Raises :class:`NotFound`, also for directories and symbolic links, which have no bytes."""
    wanted = normal(path)
    manifest = await snapshots.manifest(project_id, digest)
    entry = next(
        (each for each in manifest.entries if each.path.startswith(ROOT) and relative(each.path) == wanted), None
    )
    if entry is None:
        raise NotFound(f"The workspace has no {wanted[:200]} at this point.")
    if entry.kind != "file":
        raise NotFound(f"{wanted[:200]} is a {entry.kind} and has no content of its own.", code="not_a_file")
    return entry


async def changes(snapshots: SnapshotStore, project_id: str, before: str, after: str) -> Sequence[FileChange]:
    """What differs in the workspace, in the order of the paths."""
    found = await snapshots.diff(project_id, before, after)
    return sorted((change for change in found if change.path.startswith(ROOT)), key=lambda change: change.path)
