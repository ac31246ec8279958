"""Machines with sandboxes that no other machine can reach, and whether they are alive.

Workers of several machines share one queue. One that picks up work for a sandbox on another machine gives it back while
that machine is alive (:class:`SandboxElsewhere`), and replaces the sandbox when it is not. A machine says that it is alive
by a row that its workers keep fresh; it also ends those of its sandboxes that others have written off or released.
"""

import asyncio
import logging
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.database import Database
from journeyman.platform.sandboxes.models import SandboxLease, SandboxNode
from journeyman.platform.sandboxes.port import SandboxDriver

logger = logging.getLogger(__name__)

BEAT_S: Final = 2.0
DEAD_AFTER_S: Final = 10.0
"""Silence after which a machine's sandboxes are replaced: longer than its worker takes to be restarted."""
_SETTLED_S: Final = 5.0
"""A sandbox whose lease ended this long ago is nobody's any more, also not of whoever ended the lease."""


async def is_alive(session: AsyncSession, node: str) -> bool:
    """Whether the machine has been heard of lately, by the database's clock."""
    limit = sa.func.clock_timestamp() - sa.func.make_interval(0, 0, 0, 0, 0, 0, DEAD_AFTER_S)
    alive = sa.select(sa.exists().where(SandboxNode.id == node, SandboxNode.seen_at > limit))
    return bool(await session.scalar(alive))


class NodeKeeper:
    """Keeps this machine known as alive, and its sandboxes in step with the leases. One for each worker process."""

    def __init__(self, database: Database, driver: SandboxDriver) -> None:
        self._database = database
        self._driver = driver

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
        node = self._driver.node
        if node is None:
            return
        seen_at = sa.func.clock_timestamp()
        async with self._database.transaction() as session:
            await session.execute(
                insert(SandboxNode)
                .values(id=node, seen_at=seen_at)
                .on_conflict_do_update(index_elements=["id"], set_={"seen_at": seen_at})
            )

    async def tidy(self) -> list[str]:
        """End the sandboxes here whose leases ended elsewhere; returns their ids."""
        if self._driver.node is None:
            return []
        here = await self._driver.list_ids()
        if not here:
            return []
        settled = sa.func.clock_timestamp() - sa.func.make_interval(0, 0, 0, 0, 0, 0, _SETTLED_S)
        async with self._database.transaction() as session:
            ended = list(
                await session.scalars(
                    sa.select(SandboxLease.id).where(
                        SandboxLease.id.in_(here), SandboxLease.state != "leased", SandboxLease.ended_at < settled
                    )
                )
            )
        for sandbox_id in ended:
            await self._driver.release(sandbox_id)
        return ended
