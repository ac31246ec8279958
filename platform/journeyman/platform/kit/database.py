"""PostgreSQL through SQLAlchemy: engine, sessions, the declarative base and column types."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase

Json = dict[str, Any]


class Base(DeclarativeBase):
    """Root of all tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        Json: JSONB,
        list[str]: JSONB,
        list[Json]: JSONB,
        datetime: sa.DateTime(timezone=True),
        int: sa.BigInteger,
        str: sa.Text,
    }
    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def create_engine(url: str, *, pool_size: int = 10, application_name: str = "journeyman") -> AsyncEngine:
    """An engine that hands out only open connections, so that a restarted PostgreSQL costs no failed request."""
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        connect_args={"server_settings": {"application_name": application_name}, "timeout": 10},
    )
    # pool_pre_ping would cost three round trips a transaction; asyncpg knows without asking when its socket was closed.
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
    return engine


def _refuse_closed(connection: Any, _record: Any, _proxy: Any) -> None:
    if connection.driver_connection.is_closed():
        raise DisconnectionError


class Database:
    """Hands out transactions. One request or one activity uses one, committed at its edge."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)
        self._statements = async_sessionmaker(self._autocommit, expire_on_commit=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """A session whose work is committed at the end of the block, or rolled back if the block raises."""
        async with self._sessions() as session, session.begin():
            yield session

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[AsyncSession]:
        """A session in which every statement commits itself: two round trips less than a transaction, for reading, and for
        writing with one statement.
        """
        async with self._statements() as session:
            yield session

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """A connection on which every statement commits itself: no lock outlives it while this process is busy elsewhere."""
        async with self._autocommit.connect() as connection:
            yield connection

    async def close(self) -> None:
        await self.engine.dispose()
