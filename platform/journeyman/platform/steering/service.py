"""Sending messages to the agents of a task."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.idempotency import service as idempotency
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.names import SIGNAL_INTERRUPT
from journeyman.platform.outbox import service as outbox
from journeyman.platform.steering import repository
from journeyman.platform.steering.models import PersonMessage
from journeyman.platform.steering.schemas import SendMessage
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tasks.models import Task


@dataclass(frozen=True, slots=True)
class Sent:
    """``replayed`` tells that the message was there already, under the same idempotency key."""

    message: PersonMessage
    replayed: bool


async def send(
    session: AsyncSession, project_id: str, task_id: str, body: SendMessage, *, author: str, key: str | None
) -> Sent:
    """Take a message for every agent that works on the task from now on.

    It counts from the moment this transaction is committed: a task does not end as succeeded before an agent has read it.
    Raises :class:`Conflict` for a task that has ended or is being cancelled.
    """
    task = await tasks.lock(session, project_id, task_id)
    message_id = new_id("person_message")
    request = body.model_dump(mode="json")
    earlier = await idempotency.claim(session, project_id, key, f"message:{task_id}", request, message_id)
    if earlier is not None:
        message = await repository.get(session, task_id, earlier)
        assert message is not None
        return Sent(message, replayed=True)
    tasks.refuse_ending(task, "nobody would read the message. Fork the task to go on from one of its checkpoints")
    message = await receive(session, task, message_id, body, author=author)
    if body.mode == "interrupt":
        await outbox.enqueue_signal(session, project_id, task_id, SIGNAL_INTERRUPT)
    return Sent(message, replayed=False)


async def receive(
    session: AsyncSession, task: Task, message_id: str, body: SendMessage, *, author: str
) -> PersonMessage:
    """Add the message to those that the agents are told. The caller holds the task's lock."""
    task.message_count += 1
    message = PersonMessage(
        id=message_id,
        project_id=task.project_id,
        task_id=task.id,
        seq=task.message_count,
        text=body.text,
        mode=body.mode,
        state="received",
        author=author,
        created_at=now(),
        delivered_at=None,
        acted_on_at=None,
        set_aside_at=None,
    )
    await repository.add(session, message)
    await append(
        session,
        task.id,
        EventType.MESSAGE_RECEIVED,
        {
            "message_id": message.id,
            "message_number": message.seq,
            "text": body.text,
            "mode": body.mode,
            "author": author,
        },
    )
    return message


async def page(
    session: AsyncSession, project_id: str, task_id: str, *, after: int, limit: int
) -> tuple[Sequence[PersonMessage], bool]:
    """One page, the oldest first, and whether there is another."""
    await tasks.read(session, project_id, task_id)
    found = await repository.page(session, task_id, after=after, limit=limit + 1)
    return found[:limit], len(found) > limit
