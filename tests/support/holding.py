"""Who is at work on a task: the worker process that holds one of its running activities."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client
from temporalio.service import RPCError

from journeyman.apps.embedded.specs import Part
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.database import create_engine


async def holder(stack: EmbeddedStack, workflow_id: str, activity: str, timeout_s: float = 30) -> Part:
    """The worker that carries out the workflow's running activity of that name."""
    client = await Client.connect(stack.settings.temporal_address)
    async with asyncio.timeout(timeout_s):
        while True:
            pid = await _pid(client, workflow_id, activity)
            for part in stack.parts:
                if pid is not None and part.pid == pid:
                    return part
            await asyncio.sleep(0.05)


async def _pid(client: Client, workflow_id: str, activity: str) -> int | None:
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError:
        return None
    for pending in description.raw_description.pending_activities:
        started = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        if started and pending.activity_type.name == activity and pending.last_worker_identity:
            return int(pending.last_worker_identity.partition("@")[0])
    return None


@asynccontextmanager
async def log_held(stack: EmbeddedStack, task_id: str, *, after: str, count: int = 1) -> AsyncIterator[None]:
    """Nothing can be written to the task's log for the length of the block: whoever wants to waits.

    Holds a process between a side effect and the note of its completion, for as long as a kill takes. The hold begins as
    soon as the log has ``count`` events of the type ``after``, within milliseconds.
    """
    engine = create_engine(stack.settings.database_url, application_name="journeyman-tests")
    try:
        async with asyncio.timeout(60), engine.connect() as connection:
            while True:
                held = await connection.scalar(_HOLD, {"task_id": task_id, "type": after})
                if held is not None and held >= count:
                    break
                await connection.rollback()
                await asyncio.sleep(0.005)
            yield
    finally:
        await engine.dispose()


_HOLD = sa.text(
    """
    WITH held AS (SELECT id FROM tasks WHERE id = :task_id FOR NO KEY UPDATE)
    SELECT (SELECT count(*) FROM events WHERE task_id = held.id AND type = :type) FROM held
    """
)


async def reserved(stack: EmbeddedStack, task_id: str, timeout_s: float = 30) -> None:
    """Return once the gateway has written down that it makes a call for the task."""
    engine = create_engine(stack.settings.database_url, application_name="journeyman-tests")
    rows = sa.text("SELECT count(*) FROM ledger_entries WHERE task_id = :task_id AND state = 'reserved'")
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                async with engine.connect() as connection:
                    if await connection.scalar(rows, {"task_id": task_id}):
                        return
                await asyncio.sleep(0.02)
    finally:
        await engine.dispose()


async def waiting_for_log(stack: EmbeddedStack, timeout_s: float = 30) -> None:
    """Return once somebody waits for a lock in the database."""
    engine = create_engine(stack.settings.database_url, application_name="journeyman-tests")
    waits = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                async with engine.connect() as connection:
                    if await connection.scalar(waits):
                        return
                await asyncio.sleep(0.05)
    finally:
        await engine.dispose()


@asynccontextmanager
async def frozen(pid: int) -> AsyncIterator[None]:
    """The process stands still for the length of the block: it neither answers nor dies."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def command_running(text: str, timeout_s: float = 30) -> None:
    """Return once a process with this very argument runs on the machine: a command that has begun in its sandbox."""
    wanted = text.encode()
    async with asyncio.timeout(timeout_s):
        while not any(wanted in arguments for arguments in await asyncio.to_thread(_all_arguments)):
            await asyncio.sleep(0.05)


def _all_arguments() -> list[list[bytes]]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().split(b"\0"))
    return found
