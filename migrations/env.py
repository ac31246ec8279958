"""Alembic: runs the revisions over the application's own async engine, one migrator at a time."""

import asyncio

import sqlalchemy as sa
from alembic import context

from journeyman.platform.kit.database import create_engine
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.kit.settings import Settings
from journeyman.platform.tables import metadata

_LOCK = 0x6A6F75726E6579
"""Advisory lock: of several processes that start at once, one migrates and the others wait."""


def _require_unicode(connection: sa.Connection) -> None:
    """A server set up without a locale makes databases that fail at the first arrow or umlaut in a task."""
    encoding = connection.scalar(sa.text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise InvalidInput(
            f"The database has the encoding {encoding}, in which tasks fail at the first character that is not in it. Make one "
            "with: CREATE DATABASE journeyman ENCODING 'UTF8' TEMPLATE template0"
        )


def _run(connection: sa.Connection) -> None:
    _require_unicode(connection)
    connection.execute(sa.text("SET lock_timeout = '10s'"))
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
    with context.begin_transaction():
        context.run_migrations()


async def _main() -> None:
    url = context.config.get_main_option("sqlalchemy.url") or Settings().database_url
    engine = create_engine(url, application_name="journeyman-migrate")
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


asyncio.run(_main())
