"""``/tasks``: submit, list, read, control."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from journeyman.platform.api.dependencies import (
    REPLAYED,
    IdempotencyKeyDep,
    PrincipalDep,
    ResourcesDep,
    SessionDep,
    mark_replayed,
)
from journeyman.platform.tasks import service
from journeyman.platform.tasks.schemas import Budget, SubmitTask, TaskFilter, TaskPage, TaskSummary, TaskView
from journeyman.platform.tasks.service import Submission, TaskService

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
    resources: ResourcesDep,
    response: Response,
    idempotency_key: IdempotencyKeyDep = None,
) -> TaskView:
    """Submit a task. It is started as soon as Temporal takes it; 201 means it is safely stored."""
    tasks = TaskService(resources.settings, resources.catalog)
    submitted = await tasks.submit(session, Submission(principal.project_id, body, idempotency_key))
    response.headers["Location"] = f"/v1/tasks/{submitted.task.id}"
    if submitted.replayed:
        response.status_code = 200
        mark_replayed(response)
    return TaskView.whole(submitted.task, resources.budget_warnings)


@router.get("")
async def list_tasks(wanted: Annotated[TaskFilter, Query()], principal: PrincipalDep, session: SessionDep) -> TaskPage:
    """The project's tasks, newest first."""
    tasks, cursor = await service.page(session, principal.project_id, wanted)
    return TaskPage(data=[TaskSummary.of(task) for task in tasks], next_cursor=cursor)


@router.get("/{task_id}")
async def read_task(task_id: str, principal: PrincipalDep, session: SessionDep, resources: ResourcesDep) -> TaskView:
    """One task."""
    return TaskView.whole(await service.read(session, principal.project_id, task_id), resources.budget_warnings)


@router.post("/{task_id}/cancel")
async def cancel_task(task_id: str, principal: PrincipalDep, session: SessionDep, resources: ResourcesDep) -> TaskView:
    """End a task. Repeating it, or cancelling a task that has ended, changes nothing and answers with its state."""
    return TaskView.whole(await service.cancel(session, principal.project_id, task_id), resources.budget_warnings)


@router.post("/{task_id}/pause")
async def pause_task(task_id: str, principal: PrincipalDep, session: SessionDep, resources: ResourcesDep) -> TaskView:
    """Have a task stop before its next step. Repeating it changes nothing."""
    return TaskView.whole(await service.pause(session, principal.project_id, task_id), resources.budget_warnings)


@router.post("/{task_id}/resume")
async def resume_task(task_id: str, principal: PrincipalDep, session: SessionDep, resources: ResourcesDep) -> TaskView:
    """Have a paused task go on. Repeating it changes nothing."""
    return TaskView.whole(await service.resume(session, principal.project_id, task_id), resources.budget_warnings)


@router.patch("/{task_id}/budget")
async def change_budget(
    task_id: str, changes: Budget, principal: PrincipalDep, session: SessionDep, resources: ResourcesDep
) -> TaskView:
    """Raise, lower or (with null) take away limits. A task that is paused for its budget goes on."""
    return TaskView.whole(
        await service.change_budget(session, principal.project_id, task_id, changes), resources.budget_warnings
    )
