"""Machines with sandboxes that no other machine can reach, and whether they are alive.

Each machine with sandboxes (a node) has a task queue that only its workers poll. A worker that gets work for a sandbox on another
node refuses it while that node is alive (:class:`SandboxElsewhere`), and replaces the sandbox when it is not. A node says that it is alive
by a row that its workers keep fresh; it also ends those of its sandboxes that others have written off or released.
"""

import asyncio
import logging
from datetime import timedelta
from typing import Final

from journeyman.platform.kit.database import Database
from journeyman.platform.leases import repository
from journeyman.platform.leases.admission import FORGOTTEN_AFTER, Capacity
from journeyman.platform.sandboxes.port import SandboxDriver

logger = logging.getLogger(__name__)

BEAT_S: Final = 2.0
DEAD_AFTER: Final = timedelta(seconds=10)
"""Silence after which a machine's sandboxes are replaced: longer than its worker takes to be restarted."""
_SETTLED: Final = timedelta(seconds=5)
"""A sandbox whose lease ended this long ago is nobody's any more, also not of whoever ended the lease."""


class NodeKeeper:
    """Keeps this machine known as alive, and its sandboxes in step with the leases. One for each worker process."""

    def __init__(self, database: Database, driver: SandboxDriver, capacity: Capacity) -> None:
        self._database = database
        self._driver = driver
        self._capacity = capacity

    async def keep(self) -> None:
        """Run until cancelled. A store or machine that fails for a while is tried again."""
        while True:
            try:
                await self.beat()
                await self.tidy()
            except Exception:
                logger.exception("this machine could not say that its sandboxes are alive; trying again")
            await asyncio.sleep(BEAT_S)

    async def beat(self) -> None:
        """Say that this machine is alive, if it is the only one to reach its sandboxes."""
        node = self._driver.node
        if node is None:
            return
        async with self._database.transaction() as session:
            await repository.note_alive(session, node, self._capacity.memory_bytes)

    async def tidy(self) -> list[str]:
        """End the sandboxes here whose leases ended elsewhere; returns their ids. Frees what sandboxes that are gone had."""
        node = self._driver.node
        if node is None:
            return []
        here = await self._driver.list_ids()
        async with self._database.transaction() as session:
            await repository.free_forgotten(session, node, here, FORGOTTEN_AFTER)
            if not here:
                return []
            ended = list(await repository.ended_before(session, here, _SETTLED))
        for sandbox_id in ended:
            await self._driver.release(sandbox_id)
        return ended
