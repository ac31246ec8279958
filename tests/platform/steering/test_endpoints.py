"""Messages to a running task over REST: taken once, told in order, refused where nobody would read them."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from journeyman.platform.kit.database import Database
from journeyman.platform.kit.names import SIGNAL_INTERRUPT
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.steering.schemas import MAX_TEXT
from journeyman.platform.tasks.contract import TERMINAL
from support.api import Caller, RunningApi, fields_of
from support.rows import make_task


@pytest.fixture
async def task_id(caller: Caller, database: Database) -> str:
    return await make_task(database, caller.project_id, state="running")


async def send(caller: Caller, task_id: str, text: str = "Use tabs.", **more: Any) -> dict[str, Any]:
    response = await caller.post(f"/v1/tasks/{task_id}/messages", json={"text": text, **more})
    assert response.status_code == 201, response.text
    sent: dict[str, Any] = response.json()
    return sent


async def signals(database: Database, task_id: str) -> list[str]:
    async with database.transaction() as session:
        rows = await session.scalars(sa.select(OutboxEntry).where(OutboxEntry.task_id == task_id))
        return [row.payload["signal"] for row in rows if row.kind == "signal_task"]


async def test_a_message_is_numbered_and_has_its_event(caller: Caller, database: Database, task_id: str) -> None:
    first, second = await send(caller, task_id), await send(caller, task_id, "And no comments.", mode="interrupt")
    assert [(each["number"], each["mode"], each["state"]) for each in (first, second)] == [
        (1, "queue", "received"),
        (2, "interrupt", "received"),
    ]
    assert first["delivered_at"] is first["acted_on_at"] is first["set_aside_at"] is None
    events = (await caller.get(f"/v1/tasks/{task_id}/events")).json()["data"]
    assert [(event["type"], event["data"]["text"]) for event in events] == [
        ("message.received", "Use tabs."),
        ("message.received", "And no comments."),
    ]
    # Only the one that is to be read at once wakes the workflow.
    assert await signals(database, task_id) == [SIGNAL_INTERRUPT]


async def test_messages_are_paged(caller: Caller, task_id: str) -> None:
    for number in range(5):
        await send(caller, task_id, f"Message {number}")
    seen: list[str] = []
    after: int | None = 0
    while after is not None:
        page = (await caller.get(f"/v1/tasks/{task_id}/messages", params={"after": after, "limit": 2})).json()
        seen += [each["text"] for each in page["data"]]
        after = page["next_after"]
    assert seen == [f"Message {number}" for number in range(5)]


async def test_sent_twice_is_once_said(caller: Caller, database: Database, task_id: str) -> None:
    body = {"text": "Use tabs.", "mode": "interrupt"}
    url, key = f"/v1/tasks/{task_id}/messages", {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(*(caller.post(url, json=body, headers=key) for _ in range(6)))
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await signals(database, task_id) == [SIGNAL_INTERRUPT]
    other = await caller.post(url, json={"text": "Something else."}, headers=key)
    assert other.status_code == 409
    assert len((await caller.get(url)).json()["data"]) == 1


async def test_messages_at_once_are_numbered_without_a_gap(caller: Caller, task_id: str) -> None:
    sent = await asyncio.gather(*(send(caller, task_id, f"Message {number}") for number in range(12)))
    assert sorted(each["number"] for each in sent) == list(range(1, 13))


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_nobody_reads_messages_to_a_task_that_has_ended(caller: Caller, database: Database, state: str) -> None:
    task_id = await make_task(database, caller.project_id, state=state)
    response = await caller.post(f"/v1/tasks/{task_id}/messages", json={"text": "Hello?"})
    assert response.status_code == 409
    assert "Fork the task" in response.json()["detail"]
    assert (await caller.get(f"/v1/tasks/{task_id}/messages")).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": " \n\t"}, "text"),
        ({"text": "a\x00b"}, "text"),
        ({"text": "x" * (MAX_TEXT + 1)}, "text"),
        ({"text": "ü" * (MAX_TEXT // 2 + 1)}, "text"),
        ({"text": ["a"]}, "text"),
        ({"text": "a", "mode": "shout"}, "mode"),
        ({"text": "a", "to": "coder"}, "to"),
    ],
)
async def test_bad_messages_name_the_field_and_leave_nothing(
    caller: Caller, task_id: str, body: dict[str, Any], field: str
) -> None:
    response = await caller.post(f"/v1/tasks/{task_id}/messages", json=body)
    assert response.status_code == 422
    assert fields_of(response) == {field}
    assert (await caller.get(f"/v1/tasks/{task_id}/messages")).json()["data"] == []


async def test_the_longest_message_is_taken_whole(caller: Caller, task_id: str) -> None:
    await send(caller, task_id, "x" * MAX_TEXT)
    (message,) = (await caller.get(f"/v1/tasks/{task_id}/messages")).json()["data"]
    assert message["text"] == "x" * MAX_TEXT


async def test_another_projects_task_does_not_exist(api: RunningApi, caller: Caller, task_id: str) -> None:
    await send(caller, task_id)
    async with api.caller() as stranger:
        url = f"/v1/tasks/{task_id}/messages"
        assert (await stranger.post(url, json={"text": "Leave."})).status_code == 404
        assert (await stranger.get(url)).status_code == 404
    assert len((await caller.get(f"/v1/tasks/{task_id}/messages")).json()["data"]) == 1
