"""Messages from people, and how far each has come."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.clock import now
from journeyman.platform.steering.models import PersonMessage
from journeyman.platform.threads.models import Thread


async def add(session: AsyncSession, message: PersonMessage) -> None:
    session.add(message)
    await session.flush()


async def get(session: AsyncSession, task_id: str, message_id: str) -> PersonMessage | None:
    return await session.scalar(
        sa.select(PersonMessage).where(PersonMessage.id == message_id, PersonMessage.task_id == task_id)
    )


async def page(
    session: AsyncSession, task_id: str, *, after: int, limit: int, in_force: bool = False
) -> Sequence[PersonMessage]:
    """At most ``limit`` messages after a number, the oldest first; with ``in_force``, without those that were set aside."""
    statement = (
        sa.select(PersonMessage)
        .where(PersonMessage.task_id == task_id, PersonMessage.seq > after)
        .order_by(PersonMessage.seq)
        .limit(limit)
    )
    if in_force:
        statement = statement.where(PersonMessage.set_aside_at.is_(None))
    return (await session.scalars(statement)).all()


async def any_unread(session: AsyncSession, task_id: str) -> bool:
    """Whether there is a message that no agent has read."""
    return bool(
        await session.scalar(
            sa.select(sa.exists().where(PersonMessage.task_id == task_id, PersonMessage.state == "received"))
        )
    )


async def mark_delivered(session: AsyncSession, message: PersonMessage, thread: Thread) -> None:
    """Note that the message is in the thread, with its event."""
    await append(
        session,
        message.task_id,
        EventType.MESSAGE_DELIVERED,
        {"message_id": message.id, "message_number": message.seq, "role": thread.role},
        thread_id=thread.id,
        subtask_id=thread.subtask_id,
        step_key=step_keys.part(thread.id, message.id, "delivered"),
    )
    if message.state == "received":
        message.state = "delivered"
        message.delivered_at = now()


async def mark_acted_on(session: AsyncSession, thread: Thread) -> None:
    """Note that the thread's model has answered with all its messages before it; each message is marked once."""
    rows = await session.scalars(
        sa.select(PersonMessage)
        .where(
            PersonMessage.task_id == thread.task_id,
            PersonMessage.seq > thread.acted_seq,
            PersonMessage.seq <= thread.inbox_seq,
            PersonMessage.state == "delivered",
        )
        .order_by(PersonMessage.seq)
    )
    for message in rows:
        message.state = "acted_on"
        message.acted_on_at = now()
        await append(
            session,
            thread.task_id,
            EventType.MESSAGE_ACTED_ON,
            {"message_id": message.id, "message_number": message.seq, "role": thread.role},
            thread_id=thread.id,
            subtask_id=thread.subtask_id,
            step_key=step_keys.part(thread.id, message.id, "acted_on"),
        )
    thread.acted_seq = thread.inbox_seq
