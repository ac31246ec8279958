"""``/tasks/{id}/messages``: steer a running task."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from journeyman.platform.http.dependencies import (
    REPLAYED,
    IdempotencyKeyDep,
    SessionDep,
    mark_replayed,
)
from journeyman.platform.http.pagination import DEFAULT_LIMIT, PageLimit
from journeyman.platform.steering import service
from journeyman.platform.steering.schemas import MessagePage, MessageView, SendMessage
from journeyman.platform.tenancy.dependencies import PrincipalDep

router = APIRouter(prefix="/tasks", tags=["steering"])


@router.post(
    "/{task_id}/messages",
    status_code=201,
    responses={
        200: {"model": MessageView, "description": "Sent before under the same Idempotency-Key.", "headers": REPLAYED}
    },
)
async def send_message(
    task_id: str,
    body: SendMessage,
    principal: PrincipalDep,
    session: SessionDep,
    response: Response,
    idempotency_key: IdempotencyKeyDep = None,
) -> MessageView:
    """Tell the agents something. With `interrupt`, the call in progress is cancelled first."""
    sent = await service.send(
        session, principal.project_id, task_id, body, author=principal.key_id, key=idempotency_key
    )
    if sent.replayed:
        response.status_code = 200
        mark_replayed(response)
    return MessageView.of(sent.message)


@router.get("/{task_id}/messages")
async def list_messages(
    task_id: str,
    principal: PrincipalDep,
    session: SessionDep,
    after: Annotated[int, Query(ge=0, le=2**31, description="Messages after this number.")] = 0,
    limit: PageLimit = DEFAULT_LIMIT,
) -> MessagePage:
    """What people said to the task, and how far each message has come."""
    found, more = await service.page(session, principal.project_id, task_id, after=after, limit=limit)
    return MessagePage(data=[MessageView.of(message) for message in found], next_after=found[-1].seq if more else None)
