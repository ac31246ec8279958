"""Cancelling, before and after the start, with Temporal up and down."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from journeyman.platform.kit.database import Database
from journeyman.platform.kit.settings import Settings
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.tasks.contract import TaskState
from support.api import Caller, RunningApi, api_settings, free_port, running


@pytest.fixture
async def lonely(apart_settings: Settings, apart_database: Database, tmp_path: Path) -> AsyncIterator[RunningApi]:
    """An API whose Temporal is down."""
    settings = api_settings(apart_settings, tmp_path, temporal_address=f"127.0.0.1:{free_port()}")
    async with running(settings) as api:
        yield api


async def entries(database: Database, task_id: str) -> list[OutboxEntry]:
    async with database.transaction() as session:
        rows = await session.scalars(
            sa.select(OutboxEntry).where(OutboxEntry.task_id == task_id).order_by(OutboxEntry.id)
        )
        return list(rows)


async def move(database: Database, task_id: str, *states: TaskState) -> None:
    async with database.transaction() as session:
        for state in states:
            await lifecycle.transition(session, task_id, state)


async def types(caller: Caller, task_id: str) -> list[str]:
    events = (await caller.get(f"/v1/tasks/{task_id}/events", params={"limit": 100})).json()["data"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [event["type"] for event in events]


async def test_a_task_not_started_is_cancelled_at_once_while_temporal_is_down(lonely: RunningApi) -> None:
    async with lonely.caller() as caller:
        task = await caller.submit()
        response = await caller.post(f"/v1/tasks/{task['id']}/cancel")
        assert response.status_code == 200
        cancelled = response.json()
        assert cancelled["state"] == "cancelled"
        assert cancelled["cancel_requested_at"] is not None
        assert cancelled["finished_at"] is not None
        assert await types(caller, task["id"]) == ["task.created", "task.state_changed", "task.cancelled"]
        again = await caller.post(f"/v1/tasks/{task['id']}/cancel")
        assert (again.status_code, again.json()) == (200, cancelled)
        assert (await caller.get(f"/v1/tasks/{task['id']}")).json() == cancelled


async def test_cancelling_many_times_at_once_happens_once(lonely: RunningApi) -> None:
    async with lonely.caller() as caller:
        task = await caller.submit()
        responses = await asyncio.gather(*(caller.post(f"/v1/tasks/{task['id']}/cancel") for _ in range(10)))
        assert {response.json()["state"] for response in responses} == {"cancelled"}
        assert (await types(caller, task["id"])).count("task.cancelled") == 1


async def test_a_running_task_is_told_by_its_workflow(lonely: RunningApi, apart_database: Database) -> None:
    async with lonely.caller() as caller:
        task = await caller.submit()
        await move(apart_database, task["id"], TaskState.PREPARING, TaskState.PLANNING, TaskState.RUNNING)
        first = (await caller.post(f"/v1/tasks/{task['id']}/cancel")).json()
        again = (await caller.post(f"/v1/tasks/{task['id']}/cancel")).json()
        assert first["state"] == again["state"] == "running"
        assert first["cancel_requested_at"] == again["cancel_requested_at"] is not None
        kinds = [entry.kind for entry in await entries(apart_database, task["id"])]
        # The start was attempted, or was withdrawn before anybody could.
        assert kinds.count("cancel_task") <= 1


async def test_a_finished_task_answers_with_its_state(lonely: RunningApi, apart_database: Database) -> None:
    async with lonely.caller() as caller:
        task = await caller.submit()
        await move(apart_database, task["id"], TaskState.FAILED)
        response = await caller.post(f"/v1/tasks/{task['id']}/cancel")
        assert response.status_code == 200
        assert response.json()["state"] == "failed"
        assert response.json()["cancel_requested_at"] is None
