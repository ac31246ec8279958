"""Recall within a task: the rare words of a question decide, wherever in the conversation they stand."""

from typing import Any

import pytest

from journeyman.agents import context
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from journeyman.platform.threads.search import ANSWER_HEADING, LIMIT, SNIPPET, Passage, search_task
from support.rows import make_task, make_thread

NOISE = "The port of the database is read from the file, and the tests of the port listen to what is said there. " * 40


@pytest.fixture
async def thread_id(clean_database: Database) -> str:
    return await make_thread(clean_database, await make_task(clean_database))


async def store(database: Database, thread_id: str, *messages: dict[str, Any], key: str = "m") -> None:
    async with database.transaction() as session:
        for number, message in enumerate(messages):
            await threads.append_message(session, thread_id, f"{thread_id}:{number}:{key}", message)


async def search(database: Database, thread_id: str, query: str) -> list[Passage]:
    async with database.transaction() as session:
        thread = await threads.get_thread(session, thread_id)
        return await search_task(session, thread.task_id, query)


async def test_rare_words_outweigh_many_common_ones(clean_database: Database, thread_id: str) -> None:
    noise = [context.tool_message(f"c{number}", f"{number} {NOISE}") for number in range(30)]
    fact = context.tool_message("c", f"{NOISE} staging: 48213 {NOISE}")
    await store(clean_database, thread_id, context.system_message("coder"), fact, *noise)
    found = await search(clean_database, thread_id, "On which port does the staging database listen?")
    assert "48213" in found[0].text
    assert all(len(passage.text) <= SNIPPET for passage in found)
    assert len(found) <= LIMIT


async def test_other_forms_of_a_word_are_found_and_calls_too(clean_database: Database, thread_id: str) -> None:
    call = {"id": "c", "name": "write_file", "arguments": {"path": "src/adapters/kestrel.py"}}
    await store(clean_database, thread_id, context.system_message("coder"), context.assistant_message("", [call]))
    assert "kestrel" in (await search(clean_database, thread_id, "Which adapter did I add?"))[0].text
    assert await search(clean_database, thread_id, "a b") == []
    assert await search(clean_database, thread_id, "zeppelin") == []


async def test_neither_earlier_questions_nor_repeated_openings_are_found(
    clean_database: Database, thread_id: str
) -> None:
    asked = {"id": "c", "name": "recall", "arguments": {"query": "Where does the walrus live?"}}
    await store(
        clean_database,
        thread_id,
        context.system_message("coder"),
        context.user_message("The walrus lives in cellar seven."),
        context.assistant_message("", [asked]),
        context.tool_message("c", f"{ANSWER_HEADING}\n- walrus, cellar seven"),
    )
    await store(
        clean_database,
        thread_id,
        context.user_message("The walrus lives in cellar seven. <so_far>"),
        key="segment:1:next:0",
    )
    found = await search(clean_database, thread_id, "Where does the walrus live?")
    assert [passage.text for passage in found] == ["The walrus lives in cellar seven."]


async def test_what_a_rewind_undid_is_not_found(clean_database: Database, thread_id: str) -> None:
    await store(clean_database, thread_id, context.system_message("coder"), context.user_message("walrus"))
    assert await search(clean_database, thread_id, "walrus")
    async with clean_database.transaction() as session:
        (await session.get_one(Thread, thread_id)).superseded_at = now()
    assert not await search(clean_database, thread_id, "walrus")
