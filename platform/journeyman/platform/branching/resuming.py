"""What a rewind and a fork have in common: making the copies, and telling of them."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents.context import resumed_note
from journeyman.platform.branching import copies, repository
from journeyman.platform.branching.history import History
from journeyman.platform.branching.restore import Restored
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.ids import new_id
from journeyman.platform.plans import queries as plans
from journeyman.platform.steering import service as steering
from journeyman.platform.steering.schemas import SendMessage
from journeyman.platform.tasks.contract import Phase, TaskState
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads import repository as threads

STATES: Final = {Phase.PLAN: TaskState.PLANNING, Phase.WORK: TaskState.RUNNING}


async def carry_over(
    session: AsyncSession, checkpoint: Checkpoint, restored: Restored, task: Task, epoch: int
) -> dict[str, str]:
    """Copy the conversations into a task and epoch, and set its subtasks; returns the copies' ids by those of the originals."""
    names = restored.names(task.id, epoch)
    await copies.copy_threads(
        session,
        restored,
        names,
        project_id=task.project_id,
        from_task_id=checkpoint.task_id,
        task_id=task.id,
        epoch=epoch,
    )
    for thread_id in sorted(restored.resumed):
        # Named by the checkpoint: a copy of this copy has the note already, and is told of its own point too.
        key = step_keys.part(names[thread_id], "resumed", checkpoint.id)
        await threads.append_message(session, names[thread_id], key, resumed_note())
    said = await repository.summaries(session, [one.coder for one in restored.subtasks if one.coder is not None])
    await copies.set_subtasks(session, task.project_id, task.id, restored.subtasks, said)
    return names


async def described(
    session: AsyncSession,
    checkpoint: Checkpoint,
    restored: Restored,
    names: Mapping[str, str],
    history: History,
) -> Json:
    """What the event says of where the task goes on: for those who read the log, and for a later rewind."""
    return {
        "checkpoint_id": checkpoint.id,
        "phase": restored.phase.value,
        "plan_revision": checkpoint.plan_revision,
        "plan": await _plan(session, checkpoint, restored),
        "threads": {new: old for old, new in names.items()},
        "history": history.model_dump(mode="json"),
    }


async def say(session: AsyncSession, task: Task, text: str, author: str) -> None:
    """Have the agents told something by a person, from their next step on. The caller holds the task's lock."""
    message = SendMessage.model_construct(text=text, mode="queue")
    await steering.receive(session, task, new_id("person_message"), message, author=author)


async def _plan(session: AsyncSession, checkpoint: Checkpoint, restored: Restored) -> Json | None:
    """The plan in force with the state of each subtask, as far as an overview shows it."""
    plan = await plans.of_revision(session, checkpoint.task_id, checkpoint.plan_revision)
    if plan is None:
        return None
    states = {one.id: one for one in restored.subtasks if one.revision == plan.revision}
    return {
        "revision": plan.revision,
        "subtasks": [
            {
                "id": subtask["id"],
                "title": subtask["title"],
                "depends_on": subtask.get("depends_on") or [],
                "state": states[subtask["id"]].state,
                "rounds": states[subtask["id"]].rounds,
            }
            for subtask in plan.subtasks
        ],
        "acceptance": plan.acceptance,
    }
