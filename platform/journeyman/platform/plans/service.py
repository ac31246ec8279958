"""Reading a task's plan."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.errors import NotFound
from journeyman.platform.plans import queries
from journeyman.platform.plans.models import Plan, Subtask
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.contract import TERMINAL, TaskState


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """``ended``: the task has, and nobody works on a subtask any more."""

    plan: Plan
    progress: dict[str, Subtask]
    revisions: list[Plan]
    ended: bool

    def state_of(self, subtask_id: str) -> str:
        """The state of a subtask; ``stopped`` for one that ran when the task ended."""
        row = self.progress.get(subtask_id)
        state = row.state if row else "pending"
        return "stopped" if self.ended and state == "running" else state


async def read(session: AsyncSession, project_id: str, task_id: str, revision: int | None) -> FoundPlan:
    """A revision of the plan, by default the one in force. Raises :class:`NotFound` for none, with code ``no_plan_yet`` for
    no plan in force.
    """
    task = await tasks.read(session, project_id, task_id)
    revisions = list(await queries.revisions(session, task_id))
    if revision is None:
        revision = task.plan_revision or None
    if not revisions or revision is None:
        raise NotFound("The task has no plan yet: its Planner has not submitted one.", code="no_plan_yet")
    plan = next((each for each in revisions if each.revision == revision), None)
    if plan is None:
        known = ", ".join(str(each.revision) for each in revisions)
        raise NotFound(f"The plan has these revisions: {known}; there is no {revision}.")
    return FoundPlan(
        plan, await queries.progress(session, task_id, plan.revision), revisions, TaskState(task.state) in TERMINAL
    )
