"""Messages are appended once per step key, in order, byte for byte."""

import asyncio
import json

from journeyman.platform.kit.database import Database
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from support.rows import make_task, make_thread


async def test_a_step_key_is_stored_once(database: Database) -> None:
    thread_id = await make_thread(database, await make_task(database))
    async with database.transaction() as session:
        first = await threads.append_message(session, thread_id, f"{thread_id}:a", {"role": "user", "content": "1"})
        again = await threads.append_message(session, thread_id, f"{thread_id}:a", {"role": "user", "content": "2"})
        bodies = await threads.bodies(session, thread_id)
    assert first == (1, True)
    assert again == (1, False)
    assert bodies == [{"role": "user", "content": "1"}]


async def test_concurrent_writers_leave_no_gap(database: Database) -> None:
    thread_id = await make_thread(database, await make_task(database))

    async def write(number: int) -> int:
        async with database.transaction() as session:
            seq, _ = await threads.append_message(session, thread_id, f"{thread_id}:{number}", {"n": number})
            return seq

    assert sorted(await asyncio.gather(*(write(number) for number in range(20)))) == list(range(1, 21))


async def test_strange_text_comes_back_as_it_was(database: Database) -> None:
    thread_id = await make_thread(database, await make_task(database))
    body = {"content": "NUL \x00, half a pair \ud800, ä, \u202e", "role": "tool"}
    async with database.transaction() as session:
        await threads.append_message(session, thread_id, f"{thread_id}:a", body)
        assert await threads.bodies(session, thread_id) == [body]


async def test_models_see_the_system_message_and_the_current_segment(database: Database) -> None:
    thread_id = await make_thread(database, await make_task(database))
    async with database.transaction() as session:
        for number in range(1, 7):
            await threads.append_message(session, thread_id, f"{thread_id}:{number}", {"n": number})
        thread = await session.get_one(Thread, thread_id)
        thread.segment_start = 5
        await session.flush()
        assert [json.loads(body)["n"] for _, body in await threads.visible_bodies(session, thread)] == [1, 5, 6]


async def test_a_tool_call_that_was_begun_is_known_by_its_sandbox(database: Database) -> None:
    thread_id = await make_thread(database, await make_task(database))
    async with database.transaction() as session:
        thread = await session.get_one(Thread, thread_id)
        assert await threads.begin_tool_call(session, thread, f"{thread_id}:1:0", "sbx_a") is None
        assert await threads.begin_tool_call(session, thread, f"{thread_id}:1:0", "sbx_b") == ("sbx_a", None)
        await threads.note_effect(session, f"{thread_id}:1:0", "digest")
    async with database.transaction() as session:
        thread = await session.get_one(Thread, thread_id)
        assert await threads.begin_tool_call(session, thread, f"{thread_id}:1:0", "sbx_b") == ("sbx_a", "digest")
