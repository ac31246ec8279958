"""PostgreSQL notifications: one LISTEN connection a process, that comes back by itself.

A notification only says that it is time to look. Whoever hears one reads the table, so a lost one costs time, never data.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine

from journeyman.platform.kit.logging import get_logger

Hear = Callable[[str | None], None]
"""Called on the event loop with the payload, or with None when any number of notifications may have been missed."""

PING_EVERY: Final = 5.0
PING_TIMEOUT: Final = 5.0
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 2.0

_log = get_logger(__name__)


class Notifications:
    """Listens on the channels it was given; ``run`` it as a task for as long as the process lives."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._channels: dict[str, list[Hear]] = {}
        self.connected = asyncio.Event()
        """Set while the connection stands."""

    def on(self, channel: str, hear: Hear) -> None:
        """Register before ``run``. ``hear`` must not block."""
        self._channels.setdefault(channel, []).append(hear)

    async def run(self) -> None:
        """Listen until cancelled. After each (re)connection everyone is told to look."""
        delay = _FIRST_DELAY
        while True:
            try:
                connection = await self._connect()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                _log.warning("notifications.unreachable", error=str(error), retry_in_s=delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _LONGEST_DELAY)
                continue
            delay = _FIRST_DELAY
            try:
                await self._listen(connection)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                _log.warning("notifications.lost", error=str(error))
            finally:
                self.connected.clear()
                connection.terminate()

    async def _connect(self) -> Any:
        # The same arguments as the engine's, so that every form of database URL works here too.
        _, options = self._engine.dialect.create_connect_args(self._engine.url)
        options.pop("async_fallback", None)
        options.pop("prepared_statement_cache_size", None)
        return await asyncpg.connect(
            **options, timeout=5, server_settings={"application_name": "journeyman-notifications"}
        )

    async def _listen(self, connection: Any) -> None:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        for channel, listeners in self._channels.items():
            await connection.add_listener(channel, _forward(listeners))
        self.connected.set()
        for listeners in self._channels.values():
            for hear in listeners:
                hear(None)
        while not lost.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_EVERY):
                    await lost.wait()
                break
            # A peer that vanished without a word (power, network) shows only when it is asked.
            await connection.fetchval("SELECT 1", timeout=PING_TIMEOUT)
        _log.warning("notifications.lost", error="the server closed the connection")


def _forward(listeners: list[Hear]) -> Callable[[Any, int, str, str], None]:
    def forward(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
        for hear in listeners:
            hear(payload)

    return forward
