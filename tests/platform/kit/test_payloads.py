"""Large payloads lie in the object store, not in the history; while the store is away, workflows wait."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.worker import Worker

from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.payloads import PREFIX, THRESHOLD
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.temporal import connect
from support.bulky_workflow import TIMES, Bulky, measure, produce
from support.proxy import Proxy
from support.waiting import until

SIZE = 300_000


@pytest.fixture
async def proxied(settings: Settings) -> Any:
    assert settings.s3_endpoint_url is not None
    port = int(settings.s3_endpoint_url.rsplit(":", 1)[1])
    async with Proxy.before("127.0.0.1", port) as proxy:
        yield proxy, settings.model_copy(update={"s3_endpoint_url": f"http://127.0.0.1:{proxy.port}"})


def worker(client: Client) -> Worker:
    return Worker(
        client,
        task_queue="payloads",
        workflows=[Bulky],
        activities=[produce, measure],
        # Every workflow task reads the whole history again, and so every payload.
        max_cached_workflows=0,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    )


async def start(client: Client) -> WorkflowHandle[Bulky, int]:
    return await client.start_workflow(
        Bulky.run, SIZE, id=f"{new_id('task')}/sub task", task_queue="payloads", task_timeout=timedelta(seconds=3)
    )


async def test_large_payloads_leave_a_small_history(settings: Settings, object_store: S3ObjectStore) -> None:
    client = await connect(settings, object_store)
    async with worker(client):
        handle = await start(client)
        await handle.signal(Bulky.go, "x" * SIZE)
        assert await handle.result() == SIZE * (TIMES + 1)
    history = await handle.fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 2 * THRESHOLD
    run_id = (await handle.describe()).run_id
    # The four outputs are the same bytes and so one object. The client that signals knows no run.
    folder = f"{PREFIX}/{settings.temporal_namespace}/workflow/{handle.id.replace(' ', '_')}"
    assert len(await object_store.list_keys(f"{folder}/{run_id}/")) >= 1
    assert len(await object_store.list_keys(f"{folder}/")) >= 2


async def test_while_the_store_is_away_workflows_wait(proxied: Any) -> None:
    proxy, settings = proxied
    client = await connect(settings, S3ObjectStore.from_settings(settings))
    async with worker(client):
        handle = await start(client)

        async def produced() -> bool:
            events = (await handle.fetch_history()).events
            return sum(event.HasField("activity_task_completed_event_attributes") for event in events) == TIMES

        await until(produced)
        await handle.signal(Bulky.go, "x" * SIZE)
        proxy.refuse()
        with pytest.raises(Unavailable):
            await S3ObjectStore.from_settings(settings).check()

        async def task_failed() -> bool:
            events = (await handle.fetch_history()).events
            pending = (await handle.describe()).raw_description.pending_activities
            return any(event.HasField("workflow_task_failed_event_attributes") for event in events) or any(
                activity.attempt > 1 for activity in pending
            )

        await until(task_failed)
        assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
        # A signal that cannot be stored is refused to its sender, who tries again.
        with pytest.raises(Unavailable):
            await handle.signal(Bulky.go, "y" * SIZE)
        proxy.accept()
        assert await handle.result() == SIZE * (TIMES + 1)
