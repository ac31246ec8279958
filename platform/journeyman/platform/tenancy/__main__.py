"""``python -m journeyman.platform.tenancy new-admin-key``: another operator key, when all of them are lost.

Needs what only the operator has: the database's address and the data directory, from the settings.
"""

import asyncio
import sys

from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.settings import Settings
from journeyman.platform.tenancy.service import renew_admin_key


async def _renew() -> None:
    settings = Settings()
    database = Database(create_engine(settings.database_url, pool_size=1))
    try:
        path = await renew_admin_key(database, settings.data_dir)
    finally:
        await database.close()
    sys.stdout.write(f"A new operator key is in {path}\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["new-admin-key"]:
        sys.exit("usage: python -m journeyman.platform.tenancy new-admin-key")
    asyncio.run(_renew())
