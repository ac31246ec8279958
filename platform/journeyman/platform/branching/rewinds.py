"""Taking a task back to one of its checkpoints, in place. What was done since stays in the log, set aside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals.withdrawal import withdraw
from journeyman.platform.branching import copies, repository
from journeyman.platform.branching.models import Rewind
from journeyman.platform.branching.restore import restore
from journeyman.platform.branching.resuming import STATES, carry_over, described, say
from journeyman.platform.branching.schemas import RewindTask
from journeyman.platform.checkpoints import service as checkpoints
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.idempotency import service as idempotency
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.errors import NotFound
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.names import SIGNAL_REWIND
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.outbox import service as outbox
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.contract import TaskProgress
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task

LIMIT: Final = 100
KEPT_PAUSES: Final = frozenset({"user", "budget"})
"""A task that a person paused stays paused, and what is spent stays spent. What the circuit breaker saw is undone, and
whether a model answers will show.
"""


@dataclass(frozen=True, slots=True)
class Requested:
    """``replayed`` tells that the rewind was there already, under the same idempotency key."""

    rewind: Rewind
    replayed: bool


async def request(
    session: AsyncSession, project_id: str, task_id: str, body: RewindTask, *, author: str, key: str | None
) -> Requested:
    """Have the task go back. It is acknowledged with this transaction, and done as soon as what runs has stopped.

    Raises :class:`NotFound` for no such checkpoint, :class:`Conflict` with code ``task_ended`` for a task that has ended
    or is being cancelled.
    """
    task = await tasks.lock(session, project_id, task_id)
    rewind_id = new_id("rewind")
    wanted = body.model_dump(mode="json")
    earlier = await idempotency.claim(session, project_id, key, f"rewind:{task_id}", wanted, rewind_id)
    if earlier is not None:
        found = await repository.get_rewind(session, task_id, earlier)
        assert found is not None
        return Requested(found, replayed=True)
    checkpoint = await checkpoints.checkpoint(session, task_id, body.checkpoint_id)
    tasks.refuse_ending(task, "it cannot go back. Fork it to go on from this checkpoint in a new task")
    rewind = Rewind(
        id=rewind_id,
        project_id=project_id,
        task_id=task_id,
        checkpoint_id=checkpoint.id,
        message=body.message,
        author=author,
        epoch=None,
        progress=None,
        requested_at=now(),
        applied_at=None,
    )
    await repository.add_rewind(session, rewind)
    await outbox.enqueue_signal(session, project_id, task_id, SIGNAL_REWIND, rewind_id)
    return Requested(rewind, replayed=False)


async def listed(session: AsyncSession, project_id: str, task_id: str) -> Sequence[Rewind]:
    """The task's newest rewinds, at most ``LIMIT``, the newest first."""
    await tasks.read(session, project_id, task_id)
    return await repository.rewinds(session, task_id, limit=LIMIT)


async def apply(session: AsyncSession, task_id: str, rewind_id: str) -> TaskProgress:
    """Take the task back, in the caller's transaction; once, however often this is repeated. Returns where it goes on.

    The caller has stopped all that ran for the task, and releases its sandboxes after the commit.
    """
    task = await lock_task(session, task_id)
    rewind = await repository.get_rewind(session, task_id, rewind_id)
    if rewind is None:
        raise NotFound(f"Task {task_id} has no rewind {rewind_id}.")
    if rewind.applied_at is not None:
        return TaskProgress.model_validate(rewind.progress)
    checkpoint = await checkpoints.checkpoint(session, task_id, rewind.checkpoint_id)
    point = await repository.point(session, checkpoint)
    restored = restore(point)
    moment, epoch, from_seq = now(), task.epoch + 1, task.last_seq
    names = await carry_over(session, checkpoint, restored, task, epoch)
    await copies.supersede(session, task_id, epoch, moment)
    messages = await copies.keep_messages(session, task_id, point.history.messages, moment)
    await copies.keep_notes(session, task_id, point.history.notes, moment)
    task.epoch = epoch
    task.plan_revision = checkpoint.plan_revision
    task.head_snapshot = checkpoint.head_snapshot
    await withdraw(session, task, "rewound")
    history = point.history.model_copy(update={"messages": messages})
    await _tell(
        session, task, rewind, checkpoint, from_seq, await described(session, checkpoint, restored, names, history)
    )
    await lifecycle.transition(session, task_id, STATES[restored.phase])
    if task.paused_reason not in KEPT_PAUSES:
        await lifecycle.resume(session, task_id)
    if rewind.message is not None:
        await say(session, task, rewind.message, rewind.author)
    progress = restored.progress(names, epoch, task.paused_reason)
    rewind.epoch = epoch
    rewind.progress = progress.model_dump(mode="json")
    rewind.applied_at = moment
    await session.flush()
    return progress


async def _tell(
    session: AsyncSession, task: Task, rewind: Rewind, checkpoint: Checkpoint, from_seq: int, where: dict[str, object]
) -> None:
    await append(
        session,
        task.id,
        EventType.TASK_REWOUND,
        {
            "rewind_id": rewind.id,
            "from_seq": from_seq,
            "to_seq": checkpoint.event_seq,
            "epoch": task.epoch,
            "author": rewind.author,
            **where,
        },
        step_key=step_keys.part(rewind.id, "applied"),
    )
