"""Moves of a task from state to state, and the log that closes with it."""

import pytest
import sqlalchemy as sa

from journeyman.platform.events.log import append, storable
from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.tasks.contract import TERMINAL, TRANSITIONS, TaskState
from support.api import Caller
from support.rows import make_task


async def types_of(database: Database, task_id: str) -> list[str]:
    async with database.transaction() as session:
        return list(await session.scalars(sa.select(Event.type).where(Event.task_id == task_id).order_by(Event.seq)))


def test_every_state_has_its_transitions_and_terminal_ones_have_none() -> None:
    assert set(TRANSITIONS) == set(TaskState)
    assert all(not TRANSITIONS[state] for state in TERMINAL)
    assert all(TRANSITIONS[state] for state in TaskState if state not in TERMINAL)


async def test_a_move_is_written_once(database: Database) -> None:
    task_id = await make_task(database)
    for _ in range(2):
        async with database.transaction() as session:
            await lifecycle.transition(session, task_id, TaskState.PREPARING)
    assert await types_of(database, task_id) == ["task.state_changed"]


async def test_a_move_that_is_not_allowed_changes_nothing(database: Database) -> None:
    task_id = await make_task(database)
    with pytest.raises(Conflict):
        async with database.transaction() as session:
            await lifecycle.transition(session, task_id, TaskState.SUCCEEDED)
    assert await types_of(database, task_id) == []


async def test_the_log_of_an_ended_task_is_closed(database: Database) -> None:
    task_id = await make_task(database)
    async with database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.CANCELLED)
    with pytest.raises(Conflict, match="has ended"):
        async with database.transaction() as session:
            await append(session, task_id, EventType.AGENT_MESSAGE, {})
    assert (await types_of(database, task_id))[-1] == "task.cancelled"


async def test_pause_and_resume_are_written_once(database: Database) -> None:
    task_id = await make_task(database)
    async with database.transaction() as session:
        assert await lifecycle.pause(session, task_id, "budget")
        assert not await lifecycle.pause(session, task_id, "budget")
        assert not await lifecycle.resume(session, task_id, only_reason="user")
        assert await lifecycle.resume(session, task_id)
        assert not await lifecycle.resume(session, task_id)
    assert await types_of(database, task_id) == ["task.paused", "task.resumed"]


async def test_a_pause_under_a_step_key_is_noted_once_and_taken_back_alone(database: Database) -> None:
    task_id = await make_task(database)
    async with database.transaction() as session:
        assert await lifecycle.pause(session, task_id, "circuit_breaker", step_key="one")
        assert not await lifecycle.resume(session, task_id, only_step_key="another")
        assert await lifecycle.resume(session, task_id, only_step_key="one")
        assert not await lifecycle.pause(session, task_id, "circuit_breaker", step_key="one"), (
            "an attempt repeated late"
        )
        assert await lifecycle.pause(session, task_id, "circuit_breaker", step_key="two")
        assert not await lifecycle.resume(session, task_id, only_step_key="one")
        assert await lifecycle.pause(session, task_id, "user")
        assert not await lifecycle.resume(session, task_id, only_step_key="two"), "a person's pause stands"
        assert await lifecycle.resume(session, task_id)


@pytest.mark.parametrize("reason", ["budget", "model_unavailable", "circuit_breaker", "context_exhausted"])
async def test_a_persons_pause_outranks_every_other(caller: Caller, database: Database, reason: str) -> None:
    task_id = await make_task(database, caller.project_id, state="running")
    async with database.transaction() as session:
        assert await lifecycle.pause(session, task_id, reason, {"level": "task"})
    paused = await caller.post(f"/v1/tasks/{task_id}/pause")
    assert paused.json()["paused_reason"] == "user"
    async with database.transaction() as session:
        assert not await lifecycle.pause(session, task_id, reason)
        assert not await lifecycle.resume(session, task_id, only_reason=reason)
    raised = await caller.patch(f"/v1/tasks/{task_id}/budget", json={"max_tokens": 10_000_000})
    assert raised.json()["paused_reason"] == "user"
    assert (await caller.post(f"/v1/tasks/{task_id}/resume")).json()["paused_reason"] is None


async def test_the_same_step_writes_its_event_once(database: Database) -> None:
    task_id = await make_task(database)
    for _ in range(3):
        async with database.transaction() as session:
            await append(session, task_id, EventType.AGENT_MESSAGE, {}, step_key=f"{task_id}:x")
    assert await types_of(database, task_id) == ["agent.message"]


def test_what_json_columns_cannot_hold_is_made_visible() -> None:
    assert storable({"a\x00": ["b\x00", "\ud800", "ok"]}) == {"a\u2400": ["b\u2400", "\ufffd", "ok"]}
    long = storable("x" * 100_000)
    assert len(long) < 20_000
    assert "left out" in long
