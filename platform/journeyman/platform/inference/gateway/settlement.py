"""Ends ledger entries whatever happens to the caller: a hang-up does not stop it, a database that is away delays it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from journeyman.platform.inference.gateway.metrics import UNSETTLED
from journeyman.platform.inference.ledger import Answer, LedgerCall, LedgerService, Reservation
from journeyman.platform.inference.port import TokenUsage
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.logging import get_logger

_WAIT_S: Final = 2.0
"""How long the end of an answer waits for the ledger; after that it is written in the background."""
_LONGEST_PAUSE_S: Final = 5.0

_log = get_logger(__name__)


class Settlements:
    """Tasks that outlive the requests they belong to."""

    def __init__(self, ledger: LedgerService) -> None:
        self._ledger = ledger
        self._running: set[asyncio.Task[None]] = set()

    async def reserve(self, call: LedgerCall) -> Reservation | Answer:
        """As :meth:`LedgerService.reserve`; when the caller hangs up meanwhile, the reservation is released."""
        task = asyncio.create_task(self._ledger.reserve(call))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._start(self._release_late(task))
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
            lambda: self._ledger.settle(reservation, usage, estimated=estimated, seconds=seconds, answer=answer)
        )

    async def release(self, reservation: Reservation) -> None:
        await self._finish(lambda: self._ledger.release(reservation))

    async def leave_ambiguous(self, reservation: Reservation) -> None:
        await self._finish(lambda: self._ledger.leave_ambiguous(reservation))

    async def drain(self, timeout_s: float) -> None:
        """Wait for what is still to be written. What does not get done stays reserved, and becomes ambiguous later."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                _log.error("ledger entries left open at shutdown", count=len(late))

    async def _finish(self, write: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        task = self._start(self._persist(write))
        await asyncio.wait({task}, timeout=_WAIT_S)

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
