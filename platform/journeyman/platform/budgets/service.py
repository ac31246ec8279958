"""What happens at a limit, before it, and when it is moved."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.budgets import repository
from journeyman.platform.budgets.schemas import ProjectBudget
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.errors import BudgetExhausted
from journeyman.platform.kit.metrics import BUDGET_EXHAUSTED, BUDGET_WARNED, count_after_commit
from journeyman.platform.kit.names import SIGNAL_RESUME
from journeyman.platform.ledger.limits import WARN_SHARE, Standing, period_start
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.outbox import service as outbox
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task

_WORDS = {"max_tokens": "tokens", "max_cost_usd": "US dollars", "max_wall_s": "seconds of work", "max_steps": "steps"}


@dataclass(frozen=True, slots=True)
class Changed:
    """A project's budget after a change. ``resumed``: tasks that waited for it and go on."""

    standing: Standing
    resumed: int


async def check(session: AsyncSession, task: Task) -> None:
    """Raise :class:`BudgetExhausted` at a limit that is used up. What a call may still cost is the gateway's to reserve."""
    for standing in await repository.standings(session, task.project_id, task.id, now()):
        for used in standing.used():
            whose = f"The {standing.level} has used up its budget"
            period = f" of this {used['period']}" if used["period"] != "total" else ""
            raise BudgetExhausted(
                f"{whose}{period}: {used['spent']} of {used['of']} {_WORDS[used['limit']]}. Raise {used['limit']} of the "
                f"{standing.level}'s budget to go on, or cancel the task.",
                **used,
            )


async def warn(session: AsyncSession, task: Task) -> None:
    """Say once for each limit that four fifths of it are used: in the log of the task whose step crossed the mark."""
    for standing in await repository.standings(session, task.project_id, task.id, now()):
        for used in standing.used(WARN_SHARE):
            warning = f"{used['limit']}:{used['of']}:{standing.since}"
            if await repository.first_warning(session, standing.scope, warning):
                await append(session, task.id, EventType.BUDGET_WARNED, used)
                count_after_commit(session, BUDGET_WARNED, standing.level, used["limit"])


async def exhausted(
    session: AsyncSession, task_id: str, facts: Json, detail: str, *, step_key: str | None = None
) -> None:
    """Pause a task at a limit; ``facts`` are the details of the :class:`BudgetExhausted` that stopped it.

    Whoever moved the limit between the refusal and this found no paused task to resume: it is resumed here.
    """
    names = ("level", "limit", "spent", "requested", "of", "period", "since")
    known: Json = {name: facts[name] for name in names if name in facts}
    project_id = await repository.project_of(session, task_id)
    project = await repository.lock_project(session, project_id, shared=True)
    assert project is not None
    if not await lifecycle.pause(session, task_id, "budget", {**known, "detail": detail}, step_key=step_key):
        return
    await append(session, task_id, EventType.BUDGET_EXHAUSTED, {**known, "detail": detail})
    count_after_commit(session, BUDGET_EXHAUSTED, str(known.get("level", "task")), str(known.get("limit", "unknown")))
    task = await lock_task(session, task_id)
    budget = project.budget if known.get("level") == "project" else task.budget
    if known and _moved(known, budget):
        await _resume(session, project_id, task_id)


async def change(session: AsyncSession, project_id: str, changes: ProjectBudget) -> Changed:
    """Set the limits that ``changes`` names; null takes one away. Tasks that wait for a limit that was raised go on."""
    project = await repository.lock_project(session, project_id)
    assert project is not None
    given = changes.model_dump(mode="json", exclude_unset=True)
    project.budget = {name: value for name, value in {**project.budget, **given}.items() if value is not None}
    await session.flush()
    resumed = await _resume_waiting(session, project_id, project.budget)
    return Changed(await standing_of(session, project_id), resumed)


async def renew(session: AsyncSession) -> int:
    """Have tasks go on whose project's period is over. Returns how many."""
    resumed = 0
    for project_id in await repository.projects_waited_for(session):
        project = await repository.lock_project(session, project_id)
        if project is not None:
            resumed += await _resume_waiting(session, project_id, project.budget)
    return resumed


async def standing_of(session: AsyncSession, project_id: str) -> Standing:
    """How an existing project stands."""
    [standing] = await repository.standings(session, project_id, None, now(), always=True)
    return standing


async def standings(session: AsyncSession, project_id: str, task_id: str | None = None) -> list[Standing]:
    """How a task, if one is named, and the project stand."""
    return await repository.standings(session, project_id, task_id, now(), always=True)


async def _resume_waiting(session: AsyncSession, project_id: str, budget: Json) -> int:
    resumed = 0
    for task_id in await repository.waiting_for_project(session, project_id):
        task = await lock_task(session, task_id)
        detail = task.paused_detail
        if task.paused_reason != "budget" or not detail or detail.get("level") != "project":
            continue
        if _moved(detail, budget) or _period_over(detail):
            resumed += await _resume(session, project_id, task_id)
    return resumed


async def _resume(session: AsyncSession, project_id: str, task_id: str) -> bool:
    resumed = await lifecycle.resume(session, task_id, only_reason="budget")
    if resumed:
        await outbox.enqueue_signal(session, project_id, task_id, SIGNAL_RESUME)
    return resumed


def _moved(facts: dict[str, Any], budget: Json) -> bool:
    """Whether the limit that stopped a task allows more now than it did, or counts over another period."""
    limit = budget.get(str(facts.get("limit")))
    if limit is None or facts.get("of") is None:
        return True
    if facts.get("level") == "project" and facts.get("period", "total") != (budget.get("period") or "total"):
        return True
    return Decimal(str(limit)) > Decimal(str(facts["of"]))


def _period_over(detail: Json) -> bool:
    since = detail.get("since")
    return since is not None and str(period_start(str(detail.get("period")), now().date())) > str(since)
