"""Every tool call has an end in the log."""

import pytest
import sqlalchemy as sa

from journeyman.platform.events.log import append
from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.tasks.contract import TaskState
from support.rows import make_task, make_thread


@pytest.mark.parametrize("state", [TaskState.CANCELLED, TaskState.ERRORED])
async def test_open_calls_end_with_the_task(database: Database, state: TaskState) -> None:
    task_id = await make_task(database)
    thread_id = await make_thread(database, task_id)
    async with database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.PREPARING)
        for number in range(3):
            call = {"call_id": f"{thread_id}:1:{number}", "tool": "shell", "role": "coder", "arguments": {}}
            await append(
                session, task_id, EventType.AGENT_TOOL_CALL, call, thread_id=thread_id, subtask_id="s1", step_key=None
            )
        done = {"call_id": f"{thread_id}:1:1", "tool": "shell", "ok": True, "text": "done"}
        await append(session, task_id, EventType.AGENT_TOOL_RESULT, done, step_key=f"{thread_id}:1:1:result")
    other = await make_task(database)
    async with database.transaction() as session:
        await append(session, other, EventType.AGENT_TOOL_CALL, {"call_id": "other:0", "tool": "shell"})
        await lifecycle.transition(session, task_id, state)
    async with database.transaction() as session:
        events = list(
            await session.scalars(
                sa.select(Event).where(Event.task_id == task_id, Event.type == "agent.tool_result").order_by(Event.seq)
            )
        )
        last = await session.scalar(
            sa.select(Event.type).where(Event.task_id == task_id).order_by(Event.seq.desc()).limit(1)
        )
        assert await session.scalar(sa.select(sa.func.count()).where(Event.task_id == other)) == 1
    assert [event.data["call_id"][-1] for event in events] == ["1", "0", "2"]
    assert [event.data.get("error") for event in events] == [None, "cut_off", "cut_off"]
    assert [(event.thread_id, event.subtask_id, event.data["role"]) for event in events[1:]] == [
        (thread_id, "s1", "coder")
    ] * 2
    assert last == f"task.{state}"
