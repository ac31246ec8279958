"""From the outbox to Temporal: every task started once, every cancel heard, whatever is down."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from journeyman.platform.dispatch.dispatcher import OutboxDispatcher
from journeyman.platform.events.models import Event
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.names import SIGNAL_CANCEL, TASK_WORKFLOW, Queue
from journeyman.platform.kit.notifications import Notifications
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.temporal import connect
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.outbox import repository, service
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.tasks.contract import StartTask, TaskState
from support.api import Caller, RunningApi, api_settings, free_port, running
from support.proxy import Proxy
from support.rows import make_project, make_task
from support.waiting import until


@pytest.fixture(scope="module")
async def temporal(clean_settings: Settings) -> Client:
    return await connect(clean_settings)


async def entries(database: Database, task_id: str) -> list[OutboxEntry]:
    async with database.transaction() as session:
        found = sa.select(OutboxEntry).where(OutboxEntry.task_id == task_id).order_by(OutboxEntry.id)
        return list(await session.scalars(found))


def delivered(database: Database, task_id: str) -> Callable[[], Any]:
    async def check() -> bool:
        found = await entries(database, task_id)
        return bool(found) and all(entry.delivered_at is not None for entry in found)

    return check


async def test_a_cancellation_that_meets_a_wake_up_is_not_lost(database: Database, temporal: Client) -> None:
    dispatcher = OutboxDispatcher(database, temporal)
    waiting = asyncio.Event()

    class Wake(asyncio.Event):
        async def wait(self) -> Literal[True]:
            waiting.set()
            return await super().wait()

    dispatcher._wake = Wake()
    running_ = asyncio.create_task(dispatcher.run())
    async with asyncio.timeout(20):
        await waiting.wait()
    dispatcher.notified(None)
    running_.cancel()
    done, _ = await asyncio.wait({running_}, timeout=5)
    running_.cancel()
    assert done
    assert running_.cancelled()


async def exists(temporal: Client, task_id: str) -> bool:
    try:
        await temporal.get_workflow_handle(task_id).describe()
    except RPCError:
        return False
    return True


async def signals(temporal: Client, task_id: str, count: int = 1) -> list[str]:
    """The signals in the workflow's history, once there are so many: what comes while a worker has its task is in there later."""
    async with asyncio.timeout(20):
        while True:
            history = await temporal.get_workflow_handle(task_id).fetch_history()
            found = [
                event.workflow_execution_signaled_event_attributes.signal_name
                for event in history.events
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
            ]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


async def enqueue(database: Database, project_id: str, task_id: str, *kinds: str) -> None:
    async with database.transaction() as session:
        for kind in kinds:
            if kind == "start":
                await service.enqueue_start(session, StartTask(task_id=task_id, project_id=project_id))
            else:
                await service.enqueue_cancel(session, project_id, task_id)


async def test_a_submitted_task_is_started_under_its_id(caller: Caller, database: Database, temporal: Client) -> None:
    task = await caller.submit()
    await until(delivered(database, task["id"]))
    description = await temporal.get_workflow_handle(task["id"]).describe()
    assert description.workflow_type == TASK_WORKFLOW
    assert description.task_queue == Queue.ORCHESTRATION
    assert description.status == WorkflowExecutionStatus.RUNNING
    history = await temporal.get_workflow_handle(task["id"]).fetch_history()
    started = history.events[0].workflow_execution_started_event_attributes
    start = StartTask.model_validate_json(started.input.payloads[0].data)
    assert (start.task_id, start.project_id) == (task["id"], caller.project_id)
    (entry,) = await entries(database, task["id"])
    assert (entry.attempts, entry.last_error) == (1, None)


async def test_a_running_task_hears_of_its_cancellation_after_its_start(
    caller: Caller, database: Database, temporal: Client
) -> None:
    task = await caller.submit()
    await until(delivered(database, task["id"]))
    async with database.transaction() as session:
        await lifecycle.transition(session, task["id"], TaskState.PREPARING)
    response = await caller.post(f"/v1/tasks/{task['id']}/cancel")
    assert response.json()["state"] == "preparing"
    await until(delivered(database, task["id"]))
    assert await signals(temporal, task["id"]) == [SIGNAL_CANCEL]


async def test_a_queued_task_whose_workflow_exists_is_cancelled_at_once_and_its_workflow_told(
    caller: Caller, database: Database, temporal: Client
) -> None:
    task = await caller.submit()
    await until(delivered(database, task["id"]))
    assert (await caller.post(f"/v1/tasks/{task['id']}/cancel")).json()["state"] == "cancelled"
    await until(delivered(database, task["id"]))
    assert await signals(temporal, task["id"]) == [SIGNAL_CANCEL]


async def test_temporal_down_then_up(
    apart_settings: Settings, temporal_address: str, tmp_path: Path, apart_database: Database, temporal: Client
) -> None:
    """Submits are accepted meanwhile and started later; one that is cancelled meanwhile never is."""
    host, port = temporal_address.split(":")
    async with Proxy.before(host, int(port)) as proxy:
        proxy.refuse()
        settings = api_settings(apart_settings, tmp_path, temporal_address=f"127.0.0.1:{proxy.port}")
        async with running(settings) as api, api.caller() as caller:
            kept = [await caller.submit() for _ in range(3)]
            dropped = await caller.submit()
            await caller.post(f"/v1/tasks/{dropped['id']}/cancel")

            async def was_tried() -> bool:
                (entry,) = await entries(apart_database, kept[0]["id"])
                return entry.last_error is not None

            await until(was_tried)
            assert (await caller.get("/readyz")).json()["status"] == "degraded"
            assert not await exists(temporal, kept[0]["id"])
            proxy.accept()
            for task in kept:
                await until(delivered(apart_database, task["id"]))
                assert await exists(temporal, task["id"])
            await until(delivered(apart_database, dropped["id"]))
            assert not await exists(temporal, dropped["id"])


async def test_several_processes_start_each_task_once(
    apart_settings: Settings, tmp_path: Path, apart_database: Database, temporal: Client
) -> None:
    async with (
        running(api_settings(apart_settings, tmp_path / "a")) as first,
        running(api_settings(apart_settings, tmp_path / "b")),
        first.caller() as caller,
    ):
        tasks = await asyncio.gather(*(caller.submit(instruction=f"{number}") for number in range(30)))
        for task in tasks:
            await until(delivered(apart_database, task["id"]))
            assert await exists(temporal, task["id"])
        found = [entry for task in tasks for entry in await entries(apart_database, task["id"])]
        assert [entry.attempts for entry in found] == [1] * 30


@pytest.fixture
async def quiet(apart_database: Database, temporal: Client) -> OutboxDispatcher:
    """A dispatcher that runs only when it is told to, and has the outbox to itself."""
    return OutboxDispatcher(apart_database, temporal)


async def test_a_workflow_that_exists_counts_as_delivered(
    quiet: OutboxDispatcher, apart_database: Database, temporal: Client
) -> None:
    project_id = await make_project(apart_database)
    task_id = await make_task(apart_database, project_id)
    start = StartTask(task_id=task_id, project_id=project_id)
    handle = await temporal.start_workflow(TASK_WORKFLOW, start, id=task_id, task_queue=Queue.ORCHESTRATION)
    for state in ("running", "closed"):
        await enqueue(apart_database, project_id, task_id, "start")
        assert await quiet.deliver_due() == 1, state
        assert all(entry.delivered_at for entry in await entries(apart_database, task_id)), state
        if state == "running":
            await handle.terminate()
    assert (await handle.describe()).run_id == handle.first_execution_run_id


async def test_rows_of_one_task_go_in_order(
    quiet: OutboxDispatcher, apart_database: Database, temporal: Client
) -> None:
    project_id = await make_project(apart_database)
    task_ids = [await make_task(apart_database, project_id) for _ in range(3)]
    for task_id in task_ids:
        await enqueue(apart_database, project_id, task_id, "start", "cancel", "cancel")
    assert [await quiet.deliver_due() for _ in range(4)] == [3, 3, 3, 0]
    for task_id in task_ids:
        assert await signals(temporal, task_id, 2) == [SIGNAL_CANCEL] * 2


async def test_a_failed_row_holds_back_the_rows_behind_it_and_no_others(
    apart_database: Database, clean_settings: Settings, temporal: Client
) -> None:
    nowhere = await connect(
        clean_settings.model_copy(update={"temporal_address": f"127.0.0.1:{free_port()}"}), lazy=True
    )
    project_id = await make_project(apart_database)
    task_id = await make_task(apart_database, project_id)
    await enqueue(apart_database, project_id, task_id, "start", "cancel")
    dispatcher = OutboxDispatcher(apart_database, nowhere)
    assert await dispatcher.deliver_due() == 1
    start, cancel = await entries(apart_database, task_id)
    assert start.last_error
    assert now() < start.next_attempt_at < now() + timedelta(seconds=1)
    assert cancel.attempts == 0
    other = await make_task(apart_database, project_id)
    await enqueue(apart_database, project_id, other, "start")
    working = OutboxDispatcher(apart_database, temporal)
    await until(lambda: _deliver_until(working, apart_database, task_id, other))
    assert await signals(temporal, task_id) == [SIGNAL_CANCEL]


async def _deliver_until(dispatcher: OutboxDispatcher, database: Database, *task_ids: str) -> bool:
    await dispatcher.deliver_due()
    return all([await delivered(database, task_id)() for task_id in task_ids])


async def test_the_wait_between_attempts_grows_to_ten_seconds(
    apart_database: Database, clean_settings: Settings
) -> None:
    nowhere = await connect(
        clean_settings.model_copy(update={"temporal_address": f"127.0.0.1:{free_port()}"}), lazy=True
    )
    dispatcher = OutboxDispatcher(apart_database, nowhere)
    project_id = await make_project(apart_database)
    task_id = await make_task(apart_database, project_id)
    await enqueue(apart_database, project_id, task_id, "start")
    waits = []
    for _ in range(9):
        assert await dispatcher.deliver_due() == 1
        (entry,) = await entries(apart_database, task_id)
        waits.append((entry.next_attempt_at - now()).total_seconds())
        async with apart_database.transaction() as session:
            await session.execute(sa.update(OutboxEntry).values(next_attempt_at=now()))
    assert waits[0] < 1
    assert 7 < waits[-1] <= 10
    (entry,) = await entries(apart_database, task_id)
    assert entry.attempts == 9
    assert entry.last_error


async def test_a_row_whose_process_died_is_due_again_after_its_lease(
    quiet: OutboxDispatcher, apart_database: Database, temporal: Client
) -> None:
    project_id = await make_project(apart_database)
    task_id = await make_task(apart_database, project_id)
    await enqueue(apart_database, project_id, task_id, "start")
    async with apart_database.transaction() as session:
        assert len(await repository.claim(session, limit=10, lease=timedelta(seconds=0.3))) == 1
    assert await quiet.deliver_due() == 0
    await until(lambda: _deliver_until(quiet, apart_database, task_id), timeout_s=5)
    assert await exists(temporal, task_id)


async def test_cancelling_what_temporal_never_had(quiet: OutboxDispatcher, apart_database: Database) -> None:
    """Retried while the task may still be started; done when the task has ended."""
    project_id = await make_project(apart_database)
    task_id = await make_task(apart_database, project_id, state="running")
    await enqueue(apart_database, project_id, task_id, "cancel")
    await quiet.deliver_due()
    (entry,) = await entries(apart_database, task_id)
    assert entry.delivered_at is None
    assert entry.last_error
    async with apart_database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.FAILED)
    await until(lambda: _deliver_until(quiet, apart_database, task_id))


async def test_cancelling_a_task_whose_workflow_was_ended_from_outside(
    quiet: OutboxDispatcher, apart_database: Database, temporal: Client
) -> None:
    """Nobody is left to write the task's end, so the cancellation does."""
    project_id = await make_project(apart_database)
    task_id = await make_task(apart_database, project_id)
    await enqueue(apart_database, project_id, task_id, "start")
    await quiet.deliver_due()
    async with apart_database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.PREPARING)
    await temporal.get_workflow_handle(task_id).terminate()
    await enqueue(apart_database, project_id, task_id, "cancel")
    await until(lambda: _deliver_until(quiet, apart_database, task_id))
    async with apart_database.transaction() as session:
        last = await session.scalar(
            sa.select(Event.type).where(Event.task_id == task_id).order_by(Event.seq.desc()).limit(1)
        )
    assert last == "task.cancelled"


async def test_a_cancelled_task_is_not_started(
    quiet: OutboxDispatcher, apart_database: Database, temporal: Client
) -> None:
    """Its start had been tried, so it could not be withdrawn."""
    project_id = await make_project(apart_database)
    task_id = await make_task(apart_database, project_id)
    await enqueue(apart_database, project_id, task_id, "start", "cancel")
    async with apart_database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.CANCELLED)
    assert [await quiet.deliver_due() for _ in range(3)] == [1, 1, 0]
    assert not await exists(temporal, task_id)


async def test_the_outbox_is_looked_at_as_soon_as_something_is_in_it(
    api: RunningApi, caller: Caller, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By notification: the poll alone would take a minute here."""
    monkeypatch.setattr("journeyman.platform.dispatch.dispatcher.POLL_EVERY", 60.0)
    await until(api.resources[Notifications].connected.is_set)
    for _ in range(3):
        task = await caller.submit()
        await until(delivered(database, task["id"]), timeout_s=8)
