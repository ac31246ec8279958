"""``/tasks/{id}/board``."""

from typing import Annotated

from fastapi import APIRouter, Query

from journeyman.platform.board import service
from journeyman.platform.board.schemas import BoardFilter, BoardView, NoteView, PlanStateView
from journeyman.platform.http.dependencies import SessionDep
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(prefix="/tasks", tags=["board"])


@router.get("/{task_id}/board")
async def read_board(
    task_id: str, wanted: Annotated[BoardFilter, Query()], principal: PrincipalDep, session: SessionDep
) -> BoardView:
    """What the task's roles share: how far the plan is, and their notes, newest first."""
    page = await service.page(session, principal.project_id, task_id, wanted)
    return BoardView(
        plan=None if page.plan is None else PlanStateView.of(page.plan.plan, page.plan.subtasks),
        data=[NoteView.of(posted) for posted in page.notes],
        next_cursor=page.cursor,
    )
