"""Going on from a checkpoint in a new task; the one it was made from is only read."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.branching import copies, repository
from journeyman.platform.branching.restore import restore
from journeyman.platform.branching.resuming import carry_over, described, say
from journeyman.platform.branching.schemas import ForkTask
from journeyman.platform.checkpoints import service as checkpoints
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.idempotency import service as idempotency
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.settings import Settings
from journeyman.platform.outbox import service as outbox
from journeyman.platform.replay.catalog import ReplayCatalog
from journeyman.platform.submission.service import Submitted, check_engine, unstarted
from journeyman.platform.tasks import repository as task_rows
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.contract import StartTask
from journeyman.platform.tasks.models import Task

_SUFFIX: Final = " (fork)"
_MAX_TITLE: Final = 200


@dataclass(frozen=True, slots=True)
class Fork:
    """What a request asks for, beside its transaction. ``author``: id of the API key."""

    project_id: str
    task_id: str
    body: ForkTask
    author: str
    idempotency_key: str | None


class ForkService:
    """Policy of forks. ``catalog`` is asked only while the replay engine stands in for a model."""

    def __init__(self, settings: Settings, catalog: ReplayCatalog) -> None:
        self._settings = settings
        self._catalog = catalog

    async def fork(self, session: AsyncSession, wanted: Fork) -> Submitted:
        """Make the new task with all it goes on from, and its start, in the caller's transaction.

        All that is read up to a checkpoint never changes, so that the other task may run meanwhile. Raises
        :class:`NotFound` for no such task or checkpoint, :class:`InvalidInput` for an instruction that cannot be followed.
        """
        parent = await tasks.read(session, wanted.project_id, wanted.task_id)
        body, fork_id = wanted.body, new_id("task")
        request = body.model_dump(mode="json", exclude_unset=True)
        earlier = await idempotency.claim(
            session, wanted.project_id, wanted.idempotency_key, f"fork:{parent.id}", request, fork_id
        )
        if earlier is not None:
            return Submitted(await tasks.read(session, wanted.project_id, earlier), replayed=True)
        checkpoint = await checkpoints.checkpoint(session, parent.id, body.checkpoint_id)
        instruction = body.instruction or parent.instruction
        check_engine(self._settings, self._catalog, instruction)
        task = _new_task(fork_id, parent, checkpoint, body)
        await task_rows.add(session, task)
        data = {"title": task.title, "state": task.state, "workspace": task.workspace, "acceptance": task.acceptance}
        await append(session, task.id, EventType.TASK_CREATED, data)
        start = await _carry_over(session, parent, checkpoint, task)
        if instruction != parent.instruction:
            text = f"The instruction of the task was changed. From here on it is:\n\n{instruction}"
            await say(session, task, text, wanted.author)
        await outbox.enqueue_start(session, start)
        await session.flush()
        await session.refresh(task, ["last_seq", "updated_at"])
        return Submitted(task, replayed=False)


async def _carry_over(session: AsyncSession, parent: Task, checkpoint: Checkpoint, task: Task) -> StartTask:
    """Copy the plans, conversations, messages and notes; returns how the new task's workflow begins."""
    point = await repository.point(session, checkpoint)
    # Plans of other branches are not copied: their numbers are free in the new task.
    restored = restore(point.alone())
    await copies.copy_plans(session, parent.id, task.project_id, task.id, point.history.revisions)
    names = await carry_over(session, checkpoint, restored, task, task.epoch)
    messages = point.history.messages
    await copies.copy_messages_of_people(session, task.project_id, parent.id, task.id, messages)
    task.message_count = max(messages, default=0)
    where = await described(session, checkpoint, restored, names, point.history)
    data = {"from_task_id": parent.id, "from_seq": checkpoint.event_seq, "inherited": task.inherited, **where}
    told = await append(session, task.id, EventType.TASK_FORKED, data)
    await copies.copy_notes(session, task, parent.id, point.history.notes, names, told.seq)
    return StartTask(
        task_id=task.id,
        project_id=task.project_id,
        trace_context=task.trace_context,
        progress=restored.progress(names, task.epoch, None),
    )


def _new_task(fork_id: str, parent: Task, checkpoint: Checkpoint, body: ForkTask) -> Task:
    budget = parent.budget if body.budget is None else body.budget.model_dump(mode="json", exclude_none=True)
    return unstarted(
        id=fork_id,
        project_id=parent.project_id,
        title=parent.title.removesuffix(_SUFFIX)[: _MAX_TITLE - len(_SUFFIX)] + _SUFFIX,
        instruction=body.instruction or parent.instruction,
        workspace=parent.workspace,
        environment=parent.environment,
        acceptance=parent.acceptance,
        agent_profile=parent.agent_profile,
        model_tier=parent.model_tier,
        models=parent.models,
        budget=budget,
        approval_policy=parent.approval_policy,
        memory=parent.memory,
        labels=parent.labels,
        plan_revision=checkpoint.plan_revision,
        initial_snapshot=parent.initial_snapshot,
        head_snapshot=checkpoint.head_snapshot,
        forked_from={"task_id": parent.id, "checkpoint_id": checkpoint.id},
        inherited=added(checkpoint.budget, parent.inherited),
    )


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    """The sum of two amounts ``{tokens, cost_usd, steps, wall_s}``; what one lacks is nothing."""
    return {
        "tokens": int(one.get("tokens", 0)) + int(other.get("tokens", 0)),
        "cost_usd": str(Decimal(one.get("cost_usd", 0)) + Decimal(other.get("cost_usd", 0))),
        "steps": int(one.get("steps", 0)) + int(other.get("steps", 0)),
        "wall_s": int(one.get("wall_s", 0)) + int(other.get("wall_s", 0)),
    }
