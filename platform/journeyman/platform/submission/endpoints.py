"""``/tasks``: submit, list, read, control."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from journeyman.platform.budgets.dependencies import BudgetWarningsDep
from journeyman.platform.http.dependencies import (
    REPLAYED,
    IdempotencyKeyDep,
    SessionDep,
    SettingsDep,
    mark_replayed,
)
from journeyman.platform.lifecycle import service as control
from journeyman.platform.submission import service
from journeyman.platform.submission.dependencies import CatalogDep
from journeyman.platform.submission.schemas import (
    Budget,
    SubmitTask,
    TaskFilter,
    TaskPage,
    TaskSummary,
    TaskView,
)
from journeyman.platform.submission.service import Submission, TaskService
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(prefix="/tasks", tags=["tasks"])


@router.post(
    "",
    status_code=201,
    responses={
        200: {
            "model": TaskView,
            "description": "The task was accepted before under the same Idempotency-Key.",
            "headers": REPLAYED,
        }
    },
)
async def submit_task(
    body: SubmitTask,
    principal: PrincipalDep,
    session: SessionDep,
    budget_warnings: BudgetWarningsDep,
    catalog: CatalogDep,
    settings: SettingsDep,
    response: Response,
    idempotency_key: IdempotencyKeyDep = None,
) -> TaskView:
    """Submit a task. It is started as soon as Temporal takes it; 201 means it is safely stored."""
    submissions = TaskService(settings, catalog)
    submitted = await submissions.submit(session, Submission(principal.project_id, body, idempotency_key))
    response.headers["Location"] = f"/v1/tasks/{submitted.task.id}"
    if submitted.replayed:
        response.status_code = 200
        mark_replayed(response)
    return TaskView.whole(submitted.task, budget_warnings.of_task(submitted.task))


@router.get("")
async def list_tasks(wanted: Annotated[TaskFilter, Query()], principal: PrincipalDep, session: SessionDep) -> TaskPage:
    """The project's tasks, newest first."""
    found, cursor = await service.page(session, principal.project_id, wanted)
    return TaskPage(data=[TaskSummary.of(task) for task in found], next_cursor=cursor)


@router.get("/{task_id}")
async def read_task(
    task_id: str, principal: PrincipalDep, session: SessionDep, budget_warnings: BudgetWarningsDep
) -> TaskView:
    """One task."""
    task = await tasks.read(session, principal.project_id, task_id)
    return TaskView.whole(task, budget_warnings.of_task(task))


@router.post("/{task_id}/cancel")
async def cancel_task(
    task_id: str, principal: PrincipalDep, session: SessionDep, budget_warnings: BudgetWarningsDep
) -> TaskView:
    """End a task. Repeating it, or cancelling a task that has ended, changes nothing and answers with its state."""
    task = await control.cancel(session, principal.project_id, task_id)
    return TaskView.whole(task, budget_warnings.of_task(task))


@router.post("/{task_id}/pause")
async def pause_task(
    task_id: str, principal: PrincipalDep, session: SessionDep, budget_warnings: BudgetWarningsDep
) -> TaskView:
    """Have a task stop before its next step. Repeating it changes nothing."""
    task = await control.pause(session, principal.project_id, task_id)
    return TaskView.whole(task, budget_warnings.of_task(task))


@router.post("/{task_id}/resume")
async def resume_task(
    task_id: str, principal: PrincipalDep, session: SessionDep, budget_warnings: BudgetWarningsDep
) -> TaskView:
    """Have a paused task go on. Repeating it changes nothing."""
    task = await control.resume(session, principal.project_id, task_id)
    return TaskView.whole(task, budget_warnings.of_task(task))


@router.patch("/{task_id}/budget")
async def change_budget(
    task_id: str, changes: Budget, principal: PrincipalDep, session: SessionDep, budget_warnings: BudgetWarningsDep
) -> TaskView:
    """Raise, lower or (with null) take away limits. A task that is paused for its budget goes on."""
    limits = changes.model_dump(mode="json", exclude_unset=True)
    task = await control.change_budget(session, principal.project_id, task_id, limits)
    return TaskView.whole(task, budget_warnings.of_task(task))
