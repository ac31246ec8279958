"""The stream, over real sockets: resumed anywhere, nothing lost, nothing doubled, whatever fails on the way."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from journeyman.platform.events.log import append
from journeyman.platform.events.schemas import wanted
from journeyman.platform.events.stream import KEEPALIVE, OPENING, TAIL, EventFeed
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.notifications import Notifications
from journeyman.platform.kit.settings import Settings
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.tasks.contract import TaskState
from support.api import Caller, ServedApi, api_settings, calling, served
from support.proxy import Proxy
from support.rows import make_task
from support.sse import Message, events_until_end, following
from support.waiting import until


@pytest.fixture(scope="module")
async def server(clean_settings: Settings) -> AsyncIterator[ServedApi]:
    async with served(clean_settings) as api:
        yield api


@pytest.fixture
async def client(server: ServedApi, database: Database) -> AsyncIterator[Caller]:
    async with calling(server.url, database) as caller:
        yield caller


async def write(database: Database, task_id: str, count: int, **data: Any) -> None:
    for number in range(count):
        async with database.transaction() as session:
            await append(session, task_id, EventType.AGENT_MESSAGE, {"n": number, **data})


async def end(database: Database, task_id: str) -> None:
    async with database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.FAILED, failure={"code": "x", "message": "x"})


async def test_stream_and_history_are_the_same_documents(client: Caller, database: Database) -> None:
    task_id = await make_task(database, client.project_id)
    text = "\x1b[31m\x00 \u2028 \u0085 \u2029 äöü 🚀 \r\n\r\n: not a comment\nid: 9\n\nevent: end"
    await write(database, task_id, 3, text=text, nested={"a": [1, 2.5, None, True]})
    await end(database, task_id)
    streamed = await events_until_end(client, task_id)
    history = (await client.get(f"/v1/tasks/{task_id}/events?limit=100")).json()["data"]
    assert [message.json() for message in streamed] == history
    assert [message.id for message in streamed] == ["1", "2", "3", "4", "5"]
    assert [message.event for message in streamed] == [event["type"] for event in history]
    assert history[0]["data"]["text"] == text.replace("\x00", "\u2400")


async def test_replays_then_follows_then_ends(client: Caller, database: Database) -> None:
    task_id = await make_task(database, client.project_id)
    await write(database, task_id, 2)
    seen: list[Message] = []
    async with following(client, task_id) as stream:
        async for message in stream:
            seen.append(message)
            if message.id == "2":
                await write(database, task_id, 1)
            if message.id == "3":
                await end(database, task_id)
    kinds = [message.event for message in seen if message.event != "comment"]
    assert kinds == ["agent.message"] * 3 + ["task.state_changed", "task.failed", "end"]
    assert seen[-1].id is None
    assert seen[-1].json() == {"last_seq": 5}


@pytest.mark.parametrize("point", [0, 1, 4, 5, 6, 100])
async def test_resumes_from_any_point_of_an_ended_task(client: Caller, database: Database, point: int) -> None:
    task_id = await make_task(database, client.project_id)
    await write(database, task_id, 4)
    await end(database, task_id)
    by_header = await events_until_end(client, task_id, last_event_id=point)
    by_query = await events_until_end(client, task_id, after=point)
    assert [message.seq for message in by_header] == [message.seq for message in by_query] == list(range(point + 1, 7))


async def test_the_header_goes_before_the_query(client: Caller, database: Database) -> None:
    task_id = await make_task(database, client.project_id)
    await write(database, task_id, 4)
    await end(database, task_id)
    found = await events_until_end(client, task_id, last_event_id=5, after=1)
    assert [message.seq for message in found] == [6]


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 30, "\xb2"])
async def test_bad_last_event_id(client: Caller, database: Database, value: str) -> None:
    task_id = await make_task(database, client.project_id)
    response = await client.get(
        f"/v1/tasks/{task_id}/events/stream",
        headers={"Last-Event-ID": value.encode("latin-1")},  # type: ignore[dict-item]
    )
    assert response.status_code == 422


async def test_types(client: Caller, database: Database) -> None:
    task_id = await make_task(database, client.project_id)
    await write(database, task_id, 3)
    await end(database, task_id)
    found = await events_until_end(client, task_id, types="task.failed")
    assert [message.seq for message in found] == [5]


async def test_nothing_lost_or_doubled_while_writers_write_and_clients_come_and_go(
    client: Caller, database: Database
) -> None:
    """200 events by 8 writers, some rolled back; followers join at any time and break off again and again."""
    task_id = await make_task(database, client.project_id)
    chance = random.Random(11)
    total = 200

    async def writer(count: int) -> None:
        for number in range(count):
            async with database.transaction() as session:
                await append(session, task_id, EventType.AGENT_MESSAGE, {"n": number})
            if chance.random() < 0.2:
                await asyncio.gather(_roll_back(database, task_id))

    async def steady() -> list[int]:
        return [message.seq for message in await events_until_end(client, task_id)]

    async def restless(seed: int) -> list[int]:
        mood = random.Random(seed)
        seen: list[int] = []
        while True:
            stop_after = mood.randint(1, 30)
            async with following(client, task_id, last_event_id=seen[-1] if seen else 0) as stream:
                async for message in stream:
                    if message.event == "end":
                        return seen
                    if message.event == "comment":
                        continue
                    seen.append(message.seq)
                    stop_after -= 1
                    if stop_after == 0:
                        break

    followers = [asyncio.create_task(steady()) for _ in range(4)]
    followers += [asyncio.create_task(restless(seed)) for seed in range(6)]
    await asyncio.gather(*(writer(total // 8) for _ in range(8)))
    await end(database, task_id)
    late = asyncio.create_task(steady())
    for seen in await asyncio.gather(*followers, late):
        assert seen == list(range(1, total + 3))


async def _roll_back(database: Database, task_id: str) -> None:
    session = database.transaction()
    inner = await session.__aenter__()
    await append(inner, task_id, EventType.AGENT_MESSAGE, {"never": True})
    await session.__aexit__(RuntimeError, RuntimeError(), None)


async def test_a_log_longer_than_the_tail(client: Caller, database: Database) -> None:
    task_id = await make_task(database, client.project_id)
    async with database.transaction() as session:
        for number in range(TAIL + 300):
            await append(session, task_id, EventType.AGENT_MESSAGE, {"n": number})
    early = asyncio.create_task(events_until_end(client, task_id))
    async with database.transaction() as session:
        for number in range(TAIL + 300):
            await append(session, task_id, EventType.AGENT_MESSAGE, {"n": number})
    await end(database, task_id)
    late = await events_until_end(client, task_id, after=100)
    assert [message.seq for message in await early] == list(range(1, 2 * (TAIL + 300) + 3))
    assert [message.seq for message in late] == list(range(101, 2 * (TAIL + 300) + 3))


async def test_survives_the_loss_of_the_notification_connection(
    server: ServedApi, client: Caller, database: Database
) -> None:
    task_id = await make_task(database, client.project_id)
    async with following(client, task_id) as stream:
        assert (await anext(stream)).event == "comment"
        for seq in range(1, 4):
            await until(server.resources[Notifications].connected.is_set)
            async with database.transaction() as session:
                ended = await session.scalar(
                    sa.text(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                        "WHERE application_name = 'journeyman-notifications' AND datname = current_database()"
                    )
                )
            assert ended
            # Written while nobody listens.
            await write(database, task_id, 1)
            assert (await _next_event(stream)).seq == seq


async def _next_event(stream: AsyncIterator[Message]) -> Message:
    async with asyncio.timeout(15):
        async for message in stream:
            if message.event != "comment":
                return message
    raise AssertionError("the stream ended")


async def test_survives_an_outage_of_postgres(clean_settings: Settings, tmp_path: Path, database: Database) -> None:
    """The stream stays open while the database is away, and goes on where it was."""
    async with Proxy.to_database(clean_settings.database_url) as proxy:
        settings = api_settings(clean_settings, tmp_path, database_url=proxy.url)
        async with served(settings) as api, calling(api.url, database) as client:
            task_id = await make_task(database, client.project_id)
            await write(database, task_id, 2)
            async with following(client, task_id) as stream:
                assert [(await _next_event(stream)).seq for _ in range(2)] == [1, 2]
                proxy.refuse()
                await write(database, task_id, 3)
                response = await client.get(f"/v1/tasks/{task_id}")
                assert response.status_code == 503
                assert response.json()["retryable"] is True
                proxy.accept()
                assert [(await _next_event(stream)).seq for _ in range(3)] == [3, 4, 5]
                await write(database, task_id, 1)
                assert (await _next_event(stream)).seq == 6


async def test_waiting_streams_hold_no_database_connection(
    server: ServedApi, client: Caller, database: Database
) -> None:
    """More followers than the pool has connections, all idle, and requests are answered."""
    task_ids = [await make_task(database, client.project_id) for _ in range(4)]
    size = 40

    async def follow(task_id: str) -> list[int]:
        return [message.seq for message in await events_until_end(client, task_id)]

    before = server.resources[EventFeed].followers
    async with httpx.AsyncClient(
        base_url=server.url, headers=client.headers, limits=httpx.Limits(max_connections=None), timeout=30
    ) as many:
        followers = [
            asyncio.create_task(events_until_end(many, task_ids[number % len(task_ids)])) for number in range(size)
        ]
        await until(lambda: server.resources[EventFeed].followers == before + size)
        pool = server.resources[Database].engine.pool
        await until(lambda: pool.checkedout() == 0)  # type: ignore[attr-defined]
        assert (await client.get("/v1/tasks")).status_code == 200
        for task_id in task_ids:
            await end(database, task_id)
        results = await asyncio.gather(*followers)
    assert [[message.seq for message in result] for result in results] == [[1, 2]] * size
    await until(lambda: server.resources[EventFeed].followers == before)


async def test_a_client_that_leaves_is_forgotten(server: ServedApi, client: Caller, database: Database) -> None:
    task_id = await make_task(database, client.project_id)
    before = server.resources[EventFeed].followers
    async with following(client, task_id) as stream:
        await anext(stream)
        assert server.resources[EventFeed].followers == before + 1
    await until(lambda: server.resources[EventFeed].followers == before)


async def test_a_slow_client_holds_nothing_up(server: ServedApi, client: Caller, database: Database) -> None:
    """One follower stops reading while megabytes come; another one sees all of them at once."""
    task_id = await make_task(database, client.project_id)
    reader, writer = await asyncio.open_connection(*_address(server.url), limit=1024)
    request = f"GET /v1/tasks/{task_id}/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.key}\r\n\r\n"
    writer.write(request.encode())
    await reader.readuntil(b"\r\n\r\n")
    quick = asyncio.create_task(events_until_end(client, task_id))
    await write(database, task_id, 400, text="x" * 16_000)
    await end(database, task_id)
    async with asyncio.timeout(20):
        assert len(await quick) == 402
    # The slow one then reads on, and has lost nothing.
    received = b""
    async with asyncio.timeout(20):
        while b"event: end" not in received[-400:]:
            chunk = await reader.read(1 << 20)
            assert chunk
            received += chunk
    assert received.count(b"\nid: ") + received.startswith(b"id: ") == 402
    writer.close()
    await writer.wait_closed()


def _address(url: str) -> tuple[str, int]:
    parsed = httpx.URL(url)
    assert parsed.port is not None
    return parsed.host, parsed.port


async def test_keepalives_while_nothing_happens(database: Database) -> None:
    task_id = await make_task(database)
    feed = EventFeed(database)
    async with aclosing(feed.follow(task_id, 0, wanted([]), keepalive_s=0.05)) as stream:
        assert await anext(stream) == OPENING
        assert await anext(stream) == KEEPALIVE
        assert await anext(stream) == KEEPALIVE
        await write(database, task_id, 1)
        feed.notified(task_id)
        pieces = b""
        async with asyncio.timeout(10):
            while b"id: 1" not in pieces:
                pieces = await anext(stream)
    await feed.close()


async def test_an_event_without_its_notification_comes_late_but_comes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journeyman.platform.events.stream.RECHECK_S", 0.1)
    task_id = await make_task(database)
    feed = EventFeed(database)
    async with aclosing(feed.follow(task_id, 0, wanted([]))) as stream:
        assert await anext(stream) == OPENING
        await write(database, task_id, 1)
        async with asyncio.timeout(10):
            assert b"id: 1\n" in await anext(stream)
    await feed.close()


async def test_stopping_the_server_ends_streams_without_saying_that_the_log_has_ended(
    clean_settings: Settings, database: Database
) -> None:
    async with AsyncExitStack() as stack:
        async with served(clean_settings) as api:
            client = await stack.enter_async_context(calling(api.url, database))
            task_id = await make_task(database, client.project_id)
            await write(database, task_id, 1)
            stream = await stack.enter_async_context(following(client, task_id))
            assert (await _next_event(stream)).seq == 1
        # The server is down now, within its grace and without an error.
        assert [message.event async for message in stream] == []
