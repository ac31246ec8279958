"""Two versions of the workflow code on a real server: who carries which task, and how tasks are moved."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from journeyman.platform.kit import deployments
from journeyman.platform.kit.deployments import Version
from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.kit.names import Queue
from journeyman.workflows.versioning import WorkerVersion
from support.versioned_workflows import NewChild, NewParent, OldChild, OldParent, done, step
from support.waiting import until


def worker(client: Client, build_id: str | None, *, new: bool = False) -> AbstractAsyncContextManager[Any]:
    return Worker(
        client,
        task_queue=Queue.ORCHESTRATION,
        workflows=[NewParent, NewChild] if new else [OldParent, OldChild],
        activities=[step],
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        deployment_config=WorkerVersion(build_id, "pinned").config() if build_id else None,
    )


async def start(client: Client) -> WorkflowHandle[Any, Any]:
    """A task that has started its child, which waits."""
    handle = await client.start_workflow("TaskWorkflow", [], id=f"task_{uuid.uuid4().hex}", task_queue="orchestration")

    async def working() -> bool:
        return done[handle.id] == 1

    await until(working)
    return handle


async def let_go(client: Client, handle: WorkflowHandle[Any, Any]) -> None:
    await client.get_workflow_handle(f"{handle.id}/child").signal("go_on")


async def version_of(client: Client, build_id: str, tasks: int) -> Version:
    """What is said of a version, once it is counted with so many tasks: visibility lags behind."""

    async def found() -> Version | None:
        all_ = {version.build_id: version for version in await deployments.versions(client)}
        return all_.get(build_id) if build_id in all_ and all_[build_id].tasks == tasks else None

    result: Version = await until(found)
    return result


async def test_pinned_tasks_stay_new_ones_begin_on_the_current_version_and_a_new_run_moves(client: Client) -> None:
    async with worker(client, "one"):
        await until_current(client, "one")
        staying, moving = await start(client), await start(client)
        await staying.signal("note", 1)
        await staying.signal("note", 2)
        with pytest.raises(Conflict) as raised:
            await deployments.make_current(client, "two")
        assert raised.value.code == "no_workers"
        await let_go(client, staying)
        assert await staying.result() == ["old", 1, 2]
        async with worker(client, "two", new=True):
            await until_current(client, "two")
            assert await deployments.current_version(client) == "two"
            begun = await start(client)
            old = await version_of(client, "one", 1)
            assert (old.current, old.workers, old.stranded) == (False, 1, False)
            assert (await version_of(client, "two", 1)).current
            for handle in (moving, begun):
                await let_go(client, handle)
                await handle.signal("note", 1)
                await handle.signal("note", 2)
            assert await begun.result() == ["new", 1, 2]
            # It has noticed the newer version, and its next run begins there, with what it was told.
            await until(lambda: new_run_child(client, moving))
            await let_go(client, moving)
            assert await moving.result() == ["new", 1, 2]


async def new_run_child(client: Client, handle: WorkflowHandle[Any, Any]) -> bool:
    """Whether the run on the new version has started its child."""
    described = await client.get_workflow_handle(handle.id).describe()
    return done[f"{handle.id}:new"] == 1 and bool(described.raw_description.pending_children)


async def until_current(client: Client, build_id: str) -> None:
    async def made() -> bool:
        try:
            await deployments.make_current(client, build_id)
        except Conflict:
            return False
        return True

    await until(made)


@pytest.fixture
async def stranded(client: Client) -> AsyncIterator[WorkflowHandle[Any, Any]]:
    """A task whose version has no worker left, with a signal that it has seen and one that it has not."""
    async with worker(client, "one"):
        await until_current(client, "one")
        handle = await start(client)
        await handle.signal("note", 1)
        await version_of(client, "one", 1)
    await handle.signal("note", 2)
    yield handle
    await handle.terminate() if (await handle.describe()).close_time is None else None


async def test_stranded_tasks_are_told_of_and_moved(
    client: Client, stranded: WorkflowHandle[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A minute and a half is a long wait for a test: a worker that has not asked for a while is gone.
    monkeypatch.setattr(deployments, "SEEN", timedelta(0))
    assert (await version_of(client, "one", 1)).stranded
    monkeypatch.undo()
    async with worker(client, "two", new=True):
        await until_current(client, "two")
        with pytest.raises(Conflict):
            await deployments.move(client, away_from="two")
        assert await deployments.move(client, away_from="one") == 1
        await until(lambda: new_run_child(client, stranded))
        await let_go(client, stranded)
        assert await client.get_workflow_handle(stranded.id).result() == ["new", 1, 2]
        # The old child does not linger.
        assert (await version_of(client, "two", 0)).tasks == 0
        left = await client.count_workflows("ExecutionStatus = 'Running' AND WorkflowType = 'SubtaskWorkflow'")
        assert left.count == 0


async def test_a_worker_that_upgrades_takes_all_tasks_along(client: Client) -> None:
    async with worker(client, None):
        handle = await start(client)
        with pytest.raises(NotFound):
            await deployments.move(client)
    async with worker(client, "two", new=True):
        keeping = asyncio.create_task(WorkerVersion("two", "auto_upgrade").begin(client))
        await until(lambda: new_run_child(client, handle))
        await let_go(client, handle)
        await handle.signal("note", 1)
        await handle.signal("note", 2)
        assert await client.get_workflow_handle(handle.id).result() == ["new", 1, 2]
        await keeping
        # Another worker of the same version finds nothing to move.
        begun = await start(client)
        run_id = (await begun.describe()).run_id
        await version_of(client, "two", 1)
        await WorkerVersion("two", "auto_upgrade").begin(client)
        assert (await begun.describe()).run_id == run_id


async def test_the_first_pinned_worker_is_the_current_version(client: Client) -> None:
    first, second = (asyncio.create_task(WorkerVersion(name, "pinned").keep(client)) for name in ("one", "two"))
    current = await until(lambda: deployments.current_version(client))
    assert current in {"one", "two"}
    for task in (first, second):
        task.cancel()
