"""Background commands of a sandbox, found again in what is stored."""

import json

from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.commands import MAX_SHOWN, background_commands
from support.rows import make_task, make_thread


async def test_background_commands_of_a_sandbox(database: Database) -> None:
    task_id = await make_task(database)
    thread_id = await make_thread(database, task_id)

    async def step(number: int, sandbox_id: str, *calls: tuple[str, object, bool | None]) -> None:
        """Calls with their arguments, and whether the result says that it runs; nothing for one without a result."""
        async with database.transaction() as session:
            thread = await threads.get_thread(session, thread_id)
            key = f"{thread_id}:{number}"
            asked = [
                {"id": f"c{index}", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for index, (name, arguments, _) in enumerate(calls)
            ]
            await threads.append_message(session, thread_id, f"{key}:answer", {"tool_calls": asked})
            for index, (_, _, running) in enumerate(calls):
                await threads.begin_tool_call(session, thread, f"{key}:{index}", sandbox_id)
                if running is not None:
                    result = {"call_id": f"{key}:{index}", "running": running}
                    await append(
                        session, task_id, EventType.AGENT_TOOL_RESULT, result, step_key=f"{key}:{index}:result"
                    )

    await step(1, "one", ("shell", {"command": "serve  --port\n 80", "background": True}, True))
    await step(
        2,
        "two",
        ("shell", {"command": "make", "background": None}, False),
        ("shell", {"command": "x" * 300, "background": True}, True),
        ("edit_file", {"path": "a", "old": "b", "new": "c"}, None),
        ("shell", {"command": "refused", "background": True}, False),
        ("shell", {"command": "tail -f log", "background": True}, True),
        ("shell", ["no object"], True),
        ("shell", {"command": "under way", "background": True}, None),
    )
    async with database.transaction() as session:
        assert await background_commands(session, thread_id, "one") == ["serve --port 80"]
        assert await background_commands(session, thread_id, "two") == ["x" * MAX_SHOWN + "…", "tail -f log"]
        assert await background_commands(session, thread_id, "three") == []
        assert await background_commands(session, "thread_other", "one") == []
