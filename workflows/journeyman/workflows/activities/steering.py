"""Delivery of messages from people to threads."""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents.context import person_message
from journeyman.platform.kit import step_keys
from journeyman.platform.steering import repository as steering
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread

_BATCH: Final = 100


async def deliver_messages(session: AsyncSession, thread: Thread) -> None:
    """Append the messages of people that the thread does not have yet, in the form that the model reads."""
    while True:
        waiting = await steering.page(session, thread.task_id, after=thread.inbox_seq, limit=_BATCH, in_force=True)
        for message in waiting:
            body = person_message(message.text)
            # The event first: the task's lock before the thread's, as everywhere, so that no two wait for each other.
            await steering.mark_delivered(session, message, thread)
            await threads.append_message(session, thread.id, step_keys.part(thread.id, message.id), body)
            thread.inbox_seq = message.seq
        if len(waiting) < _BATCH:
            return
