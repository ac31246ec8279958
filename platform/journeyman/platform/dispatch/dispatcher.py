"""Delivers the outbox to Temporal: each row at least once, rows of one task in order, each with an effect that repeats well."""

import asyncio
import random
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
from journeyman.platform.kit.names import SIGNAL_CANCEL, Queue, task_workflow_id
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.lifecycle import transitions
from journeyman.platform.outbox import repository
from journeyman.platform.outbox.repository import Claimed
from journeyman.platform.tasks import repository as tasks
from journeyman.platform.tasks.contract import TERMINAL, StartTask, TaskState

LEASE: Final = RPC_TIMEOUT * 2
"""Longer than any delivery takes (at most two calls): after it, the process that claimed the row is taken for dead."""
LONGEST_BACKOFF: Final = timedelta(seconds=10)
POLL_EVERY: Final = 1.0
BATCH: Final = 20

_log = get_logger(__name__)


class NotDelivered(Exception):
    """The delivery is tried again later."""


class OutboxDispatcher:
    """``run`` it as a task for as long as the process lives; any number of processes may do so at once."""

    def __init__(self, database: Database, temporal: Client, *, sandbox_queue: Queue = Queue.SANDBOXES) -> None:
        self._database = database
        self._sandbox_queue = sandbox_queue
        self._temporal = temporal
        self._wake = asyncio.Event()
        self._failing = False

    def notified(self, _payload: str | None) -> None:
        """Look at the outbox soon."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled. Survives the loss of PostgreSQL and of Temporal."""
        while True:
            self._wake.clear()
            try:
                found = await self.deliver_due()
                await self._measure()
            except Exception as error:  # noqa: BLE001
                # Whatever it was, the rows are still there; a dispatcher that stops would strand every task.
                if database_unavailable(error):
                    _log.warning("outbox.database_unavailable", error=str(error)[:200])
                else:
                    _log.error("outbox.round_failed", exc_info=error)
                found = 0
            if found < BATCH:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_EVERY):
                        await self._wake.wait()

    async def deliver_due(self) -> int:
        """Try each row that is due once, all at the same time. Returns how many were tried."""
        async with self._database.transaction() as session:
            claimed = await repository.claim(session, limit=BATCH, lease=LEASE)
            states = await tasks.states(session, [entry.task_id for entry in claimed])
        if not claimed:
            return 0
        ended = {task_id for task_id, state in states.items() if TaskState(state) in TERMINAL}
        errors = await asyncio.gather(*(self._attempt(entry, ended=entry.task_id in ended) for entry in claimed))
        outcome = dict(zip(claimed, errors, strict=True))
        arrived = [entry.id for entry, error in outcome.items() if error is None]
        async with self._database.transaction() as session:
            await repository.delivered(session, arrived)
            for entry, error in outcome.items():
                if error is not None:
                    await repository.failed(session, entry.id, error, retry_in=_backoff(entry.attempts))
            if arrived and self._failing:
                # Temporal is back: nobody waits out a backoff that was meant for its absence.
                await repository.hurry(session, within=LONGEST_BACKOFF)
        if not arrived and not self._failing:
            # Once for the outage, not for each row and attempt of it: every row keeps its own error.
            _log.warning("outbox.not_delivered", rows=len(claimed), error=errors[0])
        self._failing = not arrived
        if arrived:
            # The next row of the same task may be due now.
            self._wake.set()
        return len(claimed)

    async def _attempt(self, entry: Claimed, *, ended: bool) -> str | None:
        """Deliver one row; the reason if that was not possible. Nothing is raised, so that no row holds up another."""
        try:
            match entry.kind:
                case "cancel_task":
                    await self._cancel(entry, ended=ended)
                case "signal_task":
                    await self._signal(entry, entry.payload["signal"], *entry.payload["arguments"], ended=ended)
                case _:
                    if not ended:
                        await self._start(entry)
        except Exception as error:  # noqa: BLE001  kept with the row, and logged
            _log.debug("outbox.row_not_delivered", task_id=entry.task_id, kind=entry.kind, error=_said(error))
            return _said(error)
        _log.info("outbox.delivered", task_id=entry.task_id, kind=entry.kind, attempts=entry.attempts)
        return None

    async def _start(self, entry: Claimed) -> None:
        start = StartTask.model_validate(entry.payload)
        with suppress(WorkflowAlreadyStartedError):
            await start_task_workflow(self._temporal, start, sandbox_queue=self._sandbox_queue)

    async def _cancel(self, entry: Claimed, *, ended: bool) -> None:
        if await self._signal(entry, SIGNAL_CANCEL, ended=ended):
            return
        # It was ended from outside (terminated, timed out) without writing the task's end: nobody else will.
        async with self._database.transaction() as session:
            await transitions.end_cancelled(session, entry.task_id)

    async def _signal(self, entry: Claimed, name: str, *arguments: str, ended: bool) -> bool:
        """Signal the task's workflow. False when there is none any more and the task does not know of its end."""
        handle = self._temporal.get_workflow_handle(task_workflow_id(entry.task_id))
        try:
            await handle.signal(name, args=arguments, rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        else:
            return True
        # "Not found" is said of a workflow that never was and of one that is over.
        if ended:
            return True
        try:
            description = await handle.describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise NotDelivered("Temporal does not know the task's workflow yet") from error
            raise
        if description.status in {WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW}:
            raise NotDelivered("the workflow was just going on in a new run")
        return False

    async def _measure(self) -> None:
        async with self._database.transaction() as session:
            count, age = await repository.pending(session)
        metrics.OUTBOX_PENDING.set(count)
        metrics.OUTBOX_LAG.set(age)


def _backoff(attempts: int) -> timedelta:
    longest = min(LONGEST_BACKOFF, timedelta(seconds=0.25 * 2 ** min(attempts, 10)))
    return longest * random.uniform(0.8, 1.0)  # noqa: S311  jitter


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
