"""One running call for each step of the platform's own: a newer attempt ends the one before it.

The caller of the older attempt counts as dead: its heartbeats have stopped, or there would be no newer one. It may be frozen
all the same, with a connection that stands, and its call would be answered, and paid, beside the new one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from journeyman.platform.inference.gateway.authentication import Caller
from journeyman.platform.inference.gateway.wire import ClientWatch
from journeyman.platform.kit.logging import get_logger

_SETTLED_WITHIN_S: Final = 3.0
"""How long a new attempt waits until the old one's ledger entry is closed."""

_log = get_logger(__name__)


@dataclass
class _Attempt:
    number: int
    watch: ClientWatch
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Attempts:
    """What runs in this process, by project and step."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], _Attempt] = {}

    @asynccontextmanager
    async def only(self, caller: Caller, watch: ClientWatch) -> AsyncIterator[None]:
        """Be the one attempt at the caller's step. Callers who name no step are left alone.

        The same attempt sent twice is not a newer one; the ledger refuses it.
        """
        key = (caller.project_id, caller.request_id)
        earlier = self._running.get(key) if caller.internal else None
        if not caller.internal or (earlier is not None and earlier.number >= caller.attempt):
            yield
            return
        own = self._running[key] = _Attempt(caller.attempt, watch)
        try:
            if earlier is not None:
                _log.warning("model.attempt_superseded", request_id=caller.request_id, attempt=earlier.number)
                earlier.watch.dismiss()
                await _wait(earlier.over)
            yield
        finally:
            own.over.set()
            if self._running.get(key) is own:
                del self._running[key]


async def _wait(over: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_SETTLED_WITHIN_S):
            await over.wait()
    except TimeoutError:
        _log.warning("model.superseded_attempt_goes_on")
