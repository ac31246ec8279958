"""A database of its own for a benchmark."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from journeyman.apps.embedded.postgres import create_database
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.migrate import upgrade
from journeyman.platform.kit.settings import Settings


@asynccontextmanager
async def empty_database() -> AsyncIterator[str]:
    """The URL of a database with all tables and no rows, on a PostgreSQL that is stopped and removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="jm-bench-", ignore_cleanup_errors=True) as directory:
        settings = Settings(data_dir=Path(directory), model_base_url=None)
        async with EmbeddedStack(Path(directory), parts=("postgres",), settings=settings, workers=1) as stack:
            url = await create_database(stack.settings.database_url, "bench")
            await asyncio.to_thread(upgrade, url)
            yield url
