"""The calls that run in this process, and who listens to them.

A call of the platform's own belongs to a step, not to a connection. A worker that is killed in the middle of an answer
leaves the call running; the one that takes the step over joins it and gets the answer from its beginning, paid once.
"""

import asyncio
from typing import Final

from journeyman.platform.inference.gateway import metrics
from journeyman.platform.inference.gateway.authentication import Caller
from journeyman.platform.inference.gateway.calls import Call, Exchange
from journeyman.platform.inference.gateway.forms import EngineForms
from journeyman.platform.inference.gateway.settlement import Settlements
from journeyman.platform.inference.gateway.upstream import UpstreamPool
from journeyman.platform.inference.gateway.wire import Send
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.ledger.service import MAX_REPLAYS

ORPHANED_S: Final = 60.0
"""How long a call goes on without a listener. A dead worker's steps are taken over within seconds, by a busy machine or
after a restart of every worker within some ten; what nobody has come back for by then is given up."""
_SETTLED_WITHIN_S: Final = 3.0
"""How long a new attempt waits until the ledger entry of the one it replaces is closed."""

_Key = tuple[str, str]
_log = get_logger(__name__)


class _Running:
    """A call with its listeners. ``attempt`` is the newest that listens or has listened."""

    def __init__(self, call: Call, attempt: int) -> None:
        self.call = call
        self.attempt = attempt
        self.joined = 0
        self.listeners = 0
        self.orphaned: asyncio.TimerHandle | None = None

    def enter(self) -> None:
        self.listeners += 1
        if self.orphaned is not None:
            self.orphaned.cancel()
            self.orphaned = None

    def leave(self) -> None:
        self.listeners -= 1
        if self.listeners or self.call.over:
            return
        if self.call.exchange.digest is None:
            self.call.give_up()
        else:
            self.orphaned = asyncio.get_running_loop().call_later(ORPHANED_S, self.call.give_up)


class RunningCalls:
    """Calls with a digest, by project and step; the others end with their caller's connection and are not found here."""

    def __init__(self, settlements: Settlements) -> None:
        self._settlements = settlements
        self._forms = EngineForms()
        self._of_step: dict[_Key, _Running] = {}
        self._all: set[_Running] = set()

    async def serve(self, exchange: Exchange, pool: UpstreamPool, send: Send) -> None:
        """Answer one request: by the call of its step that runs already, when it asks for the very same, else by a new one.

        A newer attempt with another request ends the call before it: its caller counts as dead, or there would be no
        newer one. Errors that should become an error response are raised; nothing has been sent to the caller then.
        """
        running = await self._join(exchange) or self._begin(exchange, pool)
        running.enter()
        try:
            await running.call.relay.pass_to(send)
        finally:
            running.leave()

    def give_up(self, caller: Caller) -> bool:
        """End the step's call, because its caller wants no answer any more. False when none runs, or a newer attempt listens."""
        running = self._of_step.get(_key(caller))
        if running is None or running.call.over or running.attempt > caller.attempt:
            return False
        running.call.give_up()
        return True

    async def stop(self, timeout_s: float) -> None:
        """End every call and wait until the ledger has been told."""
        for running in self._all:
            running.call.give_up()
        for running in list(self._all):
            await running.call.wait(timeout_s)

    async def _join(self, exchange: Exchange) -> _Running | None:
        caller = exchange.caller
        if exchange.digest is None:
            return None
        while (running := self._of_step.get(_key(caller))) is not None and not running.call.over:
            same = running.call.exchange.digest == exchange.digest
            if same and running.joined < MAX_REPLAYS:
                running.joined += 1
                running.attempt = max(running.attempt, caller.attempt)
                metrics.JOINED.inc()
                _log.info("model.call_joined", request_id=caller.request_id, attempt=caller.attempt)
                return running
            if running.attempt >= caller.attempt:
                # Not for an older attempt to end it; the ledger has the last word.
                return None
            _log.warning("model.attempt_superseded", request_id=caller.request_id, attempt=running.attempt)
            running.call.give_up()
            if not await running.call.wait(_SETTLED_WITHIN_S):
                _log.warning("model.superseded_attempt_goes_on", request_id=caller.request_id)
                return None
        return None

    def _begin(self, exchange: Exchange, pool: UpstreamPool) -> _Running:
        key = _key(exchange.caller)
        running = _Running(Call(exchange, pool, self._settlements, self._forms), exchange.caller.attempt)
        self._all.add(running)
        earlier = self._of_step.get(key)
        named = exchange.digest is not None and (earlier is None or earlier.call.over)
        if named:
            self._of_step[key] = running

        def forget() -> None:
            self._all.discard(running)
            if self._of_step.get(key) is running:
                del self._of_step[key]
            if running.orphaned is not None:
                running.orphaned.cancel()

        running.call.when_over(forget)
        return running


def _key(caller: Caller) -> _Key:
    return (caller.project_id, caller.request_id)
