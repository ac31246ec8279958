"""Emptying a database between tests."""

import sqlalchemy as sa

from journeyman.platform.kit.database import Database


async def truncate_all(database: Database) -> None:
    """Empty every table of the platform, keeping the schema and Alembic's own table."""
    async with database.transaction() as session:
        names = await session.scalars(
            sa.text(
                "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
            )
        )
        tables = ", ".join(names)
        if tables:
            await session.execute(sa.text(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))
