"""What a rewind to a checkpoint would change, told before anything is."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents.roles import Role
from journeyman.platform.branching import repository
from journeyman.platform.branching.forks import added
from journeyman.platform.branching.repository import OpenThread
from journeyman.platform.branching.restore import Kept, Restored, restore
from journeyman.platform.branching.resuming import STATES
from journeyman.platform.branching.schemas import (
    FilesChange,
    MessageSetAside,
    PathChange,
    PreviewView,
    SpentView,
    SubtaskChange,
    ThreadChange,
)
from journeyman.platform.checkpoints import service as checkpoints
from journeyman.platform.checkpoints.diff import changed_pairs
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.checkpoints.paths import ROOT, relative
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.database import Json
from journeyman.platform.plans import queries as plans
from journeyman.platform.plans.models import Plan, Subtask
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.contract import TERMINAL, TaskState
from journeyman.platform.tasks.models import Task

MAX_PATHS: Final = 1000
MAX_TEXT: Final = 500

Workspaces = list[tuple[str | None, str, str]]
"""Subtask (none: the head), snapshot now, snapshot then."""


async def preview(
    session: AsyncSession, project_id: str, task_id: str, checkpoint_id: str
) -> tuple[PreviewView, Workspaces]:
    """The preview but for its files, and the workspaces whose files are to be compared outside the transaction."""
    task = await tasks.read(session, project_id, task_id)
    checkpoint = await checkpoints.checkpoint(session, task_id, checkpoint_id)
    point = await repository.point(session, checkpoint)
    restored = restore(point)
    live = await repository.open_threads(session, task_id)
    now_plan = await plans.of_revision(session, task_id, task.plan_revision)
    then_plan = await plans.of_revision(session, task_id, checkpoint.plan_revision)
    progress = list((await plans.progress(session, task_id, task.plan_revision)).values())
    spent = await repository.spent(session, task)
    later = await repository.messages_after(session, task_id, point.history.messages)
    view = PreviewView(
        checkpoint_id=checkpoint.id,
        event_seq=checkpoint.event_seq,
        epoch=checkpoint.epoch,
        created_at=checkpoint.created_at,
        can_rewind=TaskState(task.state) not in TERMINAL and task.cancel_requested_at is None,
        phase=restored.phase,
        state_now=task.state,
        state_then=STATES[restored.phase].value,
        plan_revision_now=task.plan_revision,
        plan_revision_then=checkpoint.plan_revision,
        events_set_aside=task.last_seq - checkpoint.event_seq,
        subtasks=_subtasks(now_plan, progress, then_plan, restored),
        threads=await _threads(session, live, restored),
        files=[],
        messages_set_aside=[MessageSetAside(number=each.seq, text=each.text[:MAX_TEXT]) for each in later],
        approvals_withdrawn=len(task.waiting_for),
        spent=_spent_view(spent),
        inherited_by_fork=_spent_view(added(checkpoint.budget, task.inherited)),
    )
    return view, _workspaces(task, checkpoint, progress, live, restored)


async def compare(snapshots: SnapshotStore, project_id: str, workspaces: Workspaces) -> list[FilesChange]:
    """What differs in the files of each workspace; those that stay as they are are left out."""
    found = []
    for subtask_id, now, then in workspaces:
        old = (await snapshots.manifest(project_id, now)).by_path
        new = (await snapshots.manifest(project_id, then)).by_path
        changes = [
            PathChange(path=relative(pair.path), kind=pair.kind)
            for pair in changed_pairs(old, new)
            if pair.path.startswith(ROOT)
        ]
        if changes:
            kinds = [change.kind for change in changes]
            found.append(
                FilesChange(
                    subtask_id=subtask_id,
                    from_snapshot=now,
                    to_snapshot=then,
                    added=kinds.count("added"),
                    modified=kinds.count("modified"),
                    deleted=kinds.count("deleted"),
                    data=changes[:MAX_PATHS],
                    truncated=len(changes) > MAX_PATHS,
                )
            )
    return found


def _subtasks(
    now_plan: Plan | None, progress: Sequence[Subtask], then_plan: Plan | None, restored: Restored
) -> list[SubtaskChange]:
    now = {(row.revision, row.subtask_id): row.state for row in progress}
    then = {(one.revision, one.id): one.state for one in restored.subtasks}
    titles = {
        (plan.revision, subtask["id"]): subtask["title"]
        for plan in (then_plan, now_plan)
        if plan is not None
        for subtask in plan.subtasks
    }
    return [
        SubtaskChange(id=key[1], title=title, revision=key[0], now=now.get(key), then=then.get(key))
        for key, title in titles.items()
    ]


async def _threads(session: AsyncSession, live: Sequence[OpenThread], restored: Restored) -> list[ThreadChange]:
    """Those of now and of then, one for each conversation, whatever epoch its copies belong to."""
    then = {_identity(kept): kept for kept in restored.kept}
    dropped = {(one.role, one.subtask_id, one.revision, one.attempt) for one in restored.dropped}
    now = {one.identity: one for one in live}
    changes = []
    for identity in {**then, **now}:
        kept, current = then.get(identity), now.get(identity)
        shared = 0
        if kept is not None:
            shared = kept.cut.cursor
            if current is not None and current.id != kept.id:
                shared = min(shared, await repository.common_beginning(session, current.id, kept.id))
        effect = "set_aside" if kept is None else "goes_on" if kept.id in restored.resumed else "kept"
        if kept is None and identity in dropped:
            effect = "opened_anew"
        role, subtask_id, revision, attempt = identity
        changes.append(
            ThreadChange(
                role=role,
                subtask_id=subtask_id,
                revision=revision,
                attempt=attempt,
                effect=effect,
                messages_kept=kept.cut.cursor if kept is not None else 0,
                messages_set_aside=max(0, current.last_seq - shared) if current is not None else 0,
            )
        )
    return changes


def _identity(kept: Kept) -> tuple[str, str | None, int, int]:
    one = kept.conversation
    return one.role, one.subtask_id, one.revision, one.attempt


def _workspaces(
    task: Task,
    checkpoint: Checkpoint,
    progress: Sequence[Subtask],
    live: Sequence[OpenThread],
    restored: Restored,
) -> Workspaces:
    """The head, and each subtask that is at work now or was then; where only one of the two holds, against the head."""
    head_now = task.head_snapshot or task.initial_snapshot
    head_then = checkpoint.head_snapshot or task.initial_snapshot
    if head_now is None or head_then is None:
        return []
    running = {row.subtask_id for row in progress if row.state == "running"}
    now = {
        one.subtask_id: one.snapshot
        for one in live
        if one.role == Role.CODER and one.revision == task.plan_revision and one.subtask_id in running
    }
    kept = {one.id: one for one in restored.kept}
    then = {
        subtask_id: kept[progress.coder].cut.snapshot
        for subtask_id, progress in restored.going_on.items()
        if progress.coder
    }
    found: Workspaces = [(None, head_now, head_then)]
    for subtask_id in {**then, **now}:
        found.append((subtask_id, now.get(subtask_id) or head_now, then.get(subtask_id) or head_then))
    return [each for each in found if each[1] != each[2]]


def _spent_view(amount: Mapping[str, object] | Json) -> SpentView:
    return SpentView(
        tokens=int(str(amount["tokens"])),
        cost_usd=f"{Decimal(str(amount['cost_usd'])):f}",
        steps=int(str(amount["steps"])),
        wall_s=int(str(amount["wall_s"])),
    )
