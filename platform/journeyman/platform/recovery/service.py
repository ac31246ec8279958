"""Begins workflows anew that Temporal has lost. All that matters of a task is in PostgreSQL and the object store.

A workflow is lost when Temporal does not know it, because its data was damaged or deleted, or when it was ended from outside
(terminated, timed out) without writing the task's end. A workflow that begins anew goes over the task's course again and
finds every step that was done under its key: nothing is done or paid twice.
"""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from journeyman.platform.dispatch.starting import RPC_TIMEOUT, start_task_workflow
from journeyman.platform.kit import metrics
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.names import SIGNAL_CANCEL, SIGNAL_REWIND, Queue, task_workflow_id
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.recovery import repository
from journeyman.platform.recovery.repository import Started
from journeyman.platform.tasks.contract import ENDS_BY_ITSELF, StartTask, TaskProgress

EVERY_S: Final = 15.0
SETTLED: Final = timedelta(seconds=10)
"""A start that was delivered more recently is not looked at: its workflow may be about to write the task's end."""
PAGE: Final = 200
AT_ONCE: Final = 20
_RUNNING: Final = frozenset({WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW})
_log = get_logger(__name__)


class TaskRecovery:
    """``run`` it as a task for as long as the process lives; any number of processes may do so at once."""

    def __init__(self, database: Database, temporal: Client, *, sandbox_queue: Queue = Queue.SANDBOXES) -> None:
        self._sandbox_queue = sandbox_queue
        self._database = database
        self._temporal = temporal

    async def run(self) -> None:
        """Recover lost tasks every ``EVERY_S`` seconds until cancelled. Survives the loss of PostgreSQL and of Temporal."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.recover()
            except RPCError as error:
                _log.warning("recovery.temporal_unavailable", error=str(error)[:200])
            except Exception as error:  # noqa: BLE001  the next round looks again
                if database_unavailable(error):
                    _log.warning("recovery.database_unavailable", error=str(error)[:200])
                else:
                    _log.error("recovery.round_failed", exc_info=error)

    async def recover(self) -> list[str]:
        """Look at every task that should run, and begin the lost ones anew. Returns the ids of those."""
        found: list[str] = []
        after = ""
        while True:
            async with self._database.transaction() as session:
                page = await repository.started_tasks(session, after=after, older_than=SETTLED, limit=PAGE)
            if not page:
                return found
            after = page[-1].task_id
            for begin in range(0, len(page), AT_ONCE):
                batch = page[begin : begin + AT_ONCE]
                lost = await asyncio.gather(*(self._is_lost(task.task_id) for task in batch))
                for task, is_lost in zip(batch, lost, strict=True):
                    if is_lost and await self._begin_anew(task):
                        found.append(task.task_id)

    async def _is_lost(self, task_id: str) -> bool:
        try:
            described = await self._temporal.get_workflow_handle(task_workflow_id(task_id)).describe(
                rpc_timeout=RPC_TIMEOUT
            )
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return True
            raise
        return described.status not in _RUNNING

    async def _begin_anew(self, task: Started) -> bool:
        """Start the workflow where the task stands. False when the task has ended meanwhile, or another process was faster."""
        async with self._database.transaction() as session:
            current = await repository.started_tasks(
                session, after=_just_before(task.task_id), older_than=SETTLED, limit=1
            )
            if not current or current[0].task_id != task.task_id:
                return False
            task = current[0]
            applied, waiting = await repository.newest_rewinds(session, task.task_id)
        start = StartTask.model_validate(task.payload)
        progress = TaskProgress.model_validate(applied) if applied is not None else start.progress
        # A task that waits for its model goes on by itself; for all else it waits as before.
        paused_for = None if task.paused_reason in ENDS_BY_ITSELF else task.paused_reason
        start = start.model_copy(update={"progress": progress.model_copy(update={"paused_for": paused_for})})
        try:
            await start_task_workflow(self._temporal, start, again=True, sandbox_queue=self._sandbox_queue)
        except WorkflowAlreadyStartedError:
            return False
        handle = self._temporal.get_workflow_handle(task_workflow_id(task.task_id))
        with suppress(RPCError):  # it has ended already, or the next round finds it lost again
            if waiting is not None:
                await handle.signal(SIGNAL_REWIND, waiting, rpc_timeout=RPC_TIMEOUT)
            if task.cancelled:
                await handle.signal(SIGNAL_CANCEL, rpc_timeout=RPC_TIMEOUT)
        metrics.TASKS_RECOVERED.inc()
        _log.warning("recovery.task_begun_anew", task_id=task.task_id)
        return True


def _just_before(task_id: str) -> str:
    """A text that sorts right before the id: ids are of one length."""
    return task_id[:-1]
