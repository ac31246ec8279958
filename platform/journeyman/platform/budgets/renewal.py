"""A new day or month: tasks that waited for it go on."""

import asyncio
from typing import Final

from journeyman.platform.budgets import service
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.outages import database_unavailable

LOOK_EVERY_S: Final = 30.0
_log = get_logger(__name__)


class BudgetRenewal:
    """``run`` it as a task for as long as the process lives; any number of processes may do so at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Look until cancelled. Survives the loss of PostgreSQL."""
        while True:
            try:
                async with self._database.transaction() as session:
                    resumed = await service.renew(session)
                if resumed:
                    _log.info("budgets.renewed", tasks=resumed)
            except Exception as error:  # noqa: BLE001  whatever it was, the tasks still wait: the next look finds them
                if database_unavailable(error):
                    _log.warning("budgets.database_unavailable", error=str(error)[:200])
                else:
                    _log.error("budgets.renewal_failed", exc_info=error)
            await asyncio.sleep(LOOK_EVERY_S)
