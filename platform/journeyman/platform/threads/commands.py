"""What a thread's commands were, by the record of calls begun and the messages that asked for them."""

import json
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents.compaction import background_command
from journeyman.platform.events.models import Event
from journeyman.platform.kit import step_keys
from journeyman.platform.threads.models import Message, ToolCallRun

MAX_SHOWN: Final = 200
"""Characters of a command that are told of."""


async def background_commands(session: AsyncSession, thread_id: str, sandbox_id: str) -> list[str]:
    """The commands that the thread started in the background of a sandbox, in their order, each as one line.

    Only those of which the agent was told that they run; whether they had ended by themselves is not known.
    """
    begun = await session.scalars(
        sa.select(ToolCallRun.step_key)
        .join(Event, Event.step_key == ToolCallRun.step_key + step_keys.RESULT)
        .where(
            ToolCallRun.thread_id == thread_id,
            ToolCallRun.sandbox_id == sandbox_id,
            Event.data["running"].as_boolean(),
        )
        .order_by(Event.seq)
    )
    calls = [step_keys.step_of_call(key) for key in begun]
    answers = await session.execute(
        sa.select(Message.step_key, Message.body).where(
            Message.thread_id == thread_id, Message.step_key.in_({step_keys.answer(step) for step, _ in calls})
        )
    )
    asked = {step_keys.step_of_answer(step_key): json.loads(body).get("tool_calls") or [] for step_key, body in answers}
    commands = (_background_command(asked.get(step, []), index) for step, index in calls)
    return [command for command in commands if command is not None]


def _background_command(calls: list[dict[str, Any]], index: int) -> str | None:
    if index >= len(calls):
        return None
    call = calls[index]["function"]
    try:
        arguments = json.loads(call["arguments"])
    except (ValueError, RecursionError):
        return None
    command = background_command(call["name"], arguments) if isinstance(arguments, dict) else None
    if command is None:
        return None
    line = " ".join(command.split())
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}…"
