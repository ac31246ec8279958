"""Ends ledger entries whatever happens to the caller: a hang-up does not stop it, a database that is away delays it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from journeyman.platform.inference.gateway.metrics import UNSETTLED
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.ledger.service import (
    Answer,
    LedgerCall,
    LedgerService,
    Reservation,
)
from journeyman.platform.ledger.usage import TokenUsage

_WAIT_S: Final = 2.0
"""How long the end of an answer waits for the ledger; after that it is written in the background."""
_LONGEST_PAUSE_S: Final = 1.0
_EARLIER_S: Final = 10.0
"""How long a new attempt waits for the end of an earlier one at the same step to be written."""

_log = get_logger(__name__)


class Settlements:
    """Tasks that outlive the requests they belong to."""

    def __init__(self, ledger: LedgerService) -> None:
        self._ledger = ledger
        self._running: set[asyncio.Task[None]] = set()
        self._of_step: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def reserve(self, call: LedgerCall) -> Reservation | Answer:
        """As :meth:`LedgerService.reserve`; when the caller hangs up meanwhile, the reservation is released.

        An earlier attempt's end that is still to be written comes first: it may be an answer that is paid already.
        """
        earlier = self._of_step.get((call.project_id, call.step_key))
        if earlier is not None:
            await asyncio.wait({earlier}, timeout=_EARLIER_S)
            if not earlier.done():
                raise Unavailable(
                    "The ledger's database does not answer: the end of the step's earlier attempt is still to be written.",
                    code="ledger_unavailable",
                )
        task = asyncio.create_task(self._ledger.reserve(call))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The step's next attempt waits for it: it counts as the step, which this one then does not.
            self._start_for(call, self._release_late(task))
            raise

    async def settle(
        self,
        reservation: Reservation,
        usage: TokenUsage,
        *,
        estimated: bool = False,
        seconds: float = 0.0,
        answer: Answer | None = None,
    ) -> None:
        await self._finish(
            reservation,
            lambda: self._ledger.settle(reservation, usage, estimated=estimated, seconds=seconds, answer=answer),
        )

    async def release(self, reservation: Reservation) -> None:
        await self._finish(reservation, lambda: self._ledger.release(reservation))

    async def leave_ambiguous(self, reservation: Reservation) -> None:
        await self._finish(reservation, lambda: self._ledger.leave_ambiguous(reservation))

    async def drain(self, timeout_s: float) -> None:
        """Wait for what is still to be written. What does not get done stays reserved, and becomes ambiguous later."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                _log.error("ledger entries left open at shutdown", count=len(late))

    async def _finish(self, reservation: Reservation, write: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        await asyncio.wait({self._start_for(reservation.call, self._persist(write))}, timeout=_WAIT_S)

    def _start_for(self, call: LedgerCall, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start what the step's next attempt is to wait for."""
        key = (call.project_id, call.step_key)
        task = self._of_step[key] = self._start(work)
        task.add_done_callback(lambda done: self._forget_step(key, done))
        return task

    def _forget_step(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._of_step.get(key) is task:
            del self._of_step[key]

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._running.add(task)
        UNSETTLED.set(len(self._running))
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        UNSETTLED.set(len(self._running))
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a ledger entry could not be closed", exc_info=error)

    async def _persist(self, write: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        pause = 0.1
        while True:
            try:
                await write()
                return
            except Unavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _release_late(self, task: "asyncio.Task[Reservation | Answer]") -> None:
        await asyncio.wait({task})
        if task.cancelled() or task.exception() is not None:
            return
        reservation = task.result()
        if isinstance(reservation, Reservation):
            await self._persist(lambda: self._ledger.release(reservation))
