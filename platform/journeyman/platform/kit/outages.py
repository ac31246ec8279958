"""Telling an outage of PostgreSQL from a fault of our own."""

import asyncpg
import sqlalchemy.exc

_WHILE_CONNECTING = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InterfaceError,
    ConnectionError,
    TimeoutError,
)

_RACES = frozenset({"40001", "40P01"})
"""PostgreSQL's codes for serialization failures and deadlocks."""


def database_unavailable(error: BaseException) -> bool:
    """Whether the error says that PostgreSQL is down, starting, stopping or out of connections, or that a race was lost.

    Such work left nothing behind and may be repeated.
    """
    if isinstance(error, sqlalchemy.exc.TimeoutError | sqlalchemy.exc.InterfaceError | sqlalchemy.exc.OperationalError):
        return True
    if isinstance(error, sqlalchemy.exc.DBAPIError):
        state = sqlstate_of(error)
        # 08: connection; 57P: shutdown and start-up; 53300: too many clients.
        return error.connection_invalidated or state.startswith(("08", "57P")) or state == "53300" or state in _RACES
    # While connecting, asyncpg's own errors and the operating system's arrive as they are.
    return isinstance(error, _WHILE_CONNECTING)


def gave_way(error: BaseException) -> bool:
    """Whether PostgreSQL ended this transaction in favour of another (serialization failure, deadlock)."""
    return isinstance(error, sqlalchemy.exc.DBAPIError) and sqlstate_of(error) in _RACES


def sqlstate_of(error: sqlalchemy.exc.DBAPIError) -> str:
    """PostgreSQL's five characters for the error, or nothing.

    SQLAlchemy keeps the driver's error at different depths: directly for a statement, one cause further for a refused
    connection, as PostgreSQL refuses them while it starts.
    """
    candidate: BaseException | None = error.orig or error.__cause__
    for _ in range(5):
        if candidate is None:
            break
        state = getattr(candidate, "sqlstate", None)
        if state:
            return str(state)
        candidate = candidate.__cause__ or candidate.__context__
    return ""
