"""``/tasks/{id}/rewind``, ``…/rewinds``, ``…/fork`` and the preview of both."""

from fastapi import APIRouter, Response

from journeyman.platform.branching import preview, rewinds
from journeyman.platform.branching.forks import Fork, ForkService
from journeyman.platform.branching.schemas import ForkTask, PreviewView, RewindList, RewindTask, RewindView
from journeyman.platform.budgets.dependencies import BudgetWarningsDep
from journeyman.platform.checkpoints.dependencies import SnapshotsDep
from journeyman.platform.http.dependencies import (
    REPLAYED,
    DatabaseDep,
    IdempotencyKeyDep,
    SessionDep,
    SettingsDep,
    mark_replayed,
)
from journeyman.platform.submission.dependencies import CatalogDep
from journeyman.platform.submission.schemas import TaskView
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(prefix="/tasks", tags=["checkpoints"])


@router.get("/{task_id}/checkpoints/{checkpoint_id}/preview")
async def preview_rewind(
    task_id: str, checkpoint_id: str, principal: PrincipalDep, database: DatabaseDep, snapshots: SnapshotsDep
) -> PreviewView:
    """What a rewind to the checkpoint would change, and what a fork from it would begin with. Changes nothing."""
    async with database.transaction() as session:
        view, workspaces = await preview.preview(session, principal.project_id, task_id, checkpoint_id)
    view.files = await preview.compare(snapshots, principal.project_id, workspaces)
    return view


@router.post("/{task_id}/rewind", status_code=202)
async def rewind_task(
    task_id: str,
    body: RewindTask,
    principal: PrincipalDep,
    session: SessionDep,
    response: Response,
    idempotency_key: IdempotencyKeyDep = None,
) -> RewindView:
    """Take a running task back to one of its checkpoints. What is under way is stopped first; what was done stays in the
    log. Answers at once; `GET …/rewinds` and the event `task.rewound` tell when it is done.
    """
    found = await rewinds.request(
        session, principal.project_id, task_id, body, author=principal.key_id, key=idempotency_key
    )
    if found.replayed:
        mark_replayed(response)
    return RewindView.of(found.rewind)


@router.get("/{task_id}/rewinds")
async def list_rewinds(task_id: str, principal: PrincipalDep, session: SessionDep) -> RewindList:
    """The task's newest rewinds, at most 100, the newest first."""
    found = await rewinds.listed(session, principal.project_id, task_id)
    return RewindList(data=[RewindView.of(rewind) for rewind in found])


@router.post(
    "/{task_id}/fork",
    status_code=201,
    responses={
        200: {
            "model": TaskView,
            "description": "Forked before under the same Idempotency-Key.",
            "headers": REPLAYED,
        }
    },
)
async def fork_task(
    task_id: str,
    body: ForkTask,
    principal: PrincipalDep,
    session: SessionDep,
    budget_warnings: BudgetWarningsDep,
    catalog: CatalogDep,
    settings: SettingsDep,
    response: Response,
    idempotency_key: IdempotencyKeyDep = None,
) -> TaskView:
    """Go on from a checkpoint in a new task, with its conversations, files and ledger. The task itself, running or ended, is
    left as it is.
    """
    forks = ForkService(settings, catalog)
    made = await forks.fork(session, Fork(principal.project_id, task_id, body, principal.key_id, idempotency_key))
    response.headers["Location"] = f"/v1/tasks/{made.task.id}"
    if made.replayed:
        response.status_code = 200
        mark_replayed(response)
    return TaskView.whole(made.task, budget_warnings.of_task(made.task))
