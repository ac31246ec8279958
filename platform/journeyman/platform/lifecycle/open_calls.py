"""Tool calls in the log: each that was announced has an end there, also when the task ended in its middle."""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.events import repository as events
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys

CUT_OFF: Final = (
    "No result: the task ended while this call was under way or still to come. What it did until then is not kept."
)


async def end_open_calls(session: AsyncSession, task_id: str, text: str = CUT_OFF) -> None:
    """Write an ``agent.tool_result`` with ``error: cut_off`` for every call without a result, in the order of the calls.

    For a task whose calls have all been stopped. A result that comes later all the same is not written any more.
    """
    for event in await events.open_calls(session, task_id):
        data = event.data
        await append(
            session,
            task_id,
            EventType.AGENT_TOOL_RESULT,
            {
                "call_id": data["call_id"],
                "role": data.get("role"),
                "tool": data.get("tool"),
                "ok": False,
                "text": text,
                "output_id": None,
                "error": "cut_off",
            },
            thread_id=event.thread_id,
            subtask_id=event.subtask_id,
            step_key=step_keys.result(data["call_id"]),
        )
