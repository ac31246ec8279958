"""A TCP relay before PostgreSQL that can go away and come back, on the same port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy.engine import make_url


class Proxy:
    """Connections through it are cut by ``refuse``, and refused until ``accept``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def to_database(cls, url: str) -> AsyncIterator["Proxy"]:
        parsed = make_url(url)
        assert parsed.host is not None
        assert parsed.port is not None
        proxy = cls(parsed.host, parsed.port)
        server = await asyncio.start_server(proxy._relay, "127.0.0.1", 0)
        proxy._server = server
        port = server.sockets[0].getsockname()[1]
        proxy.url = parsed.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        try:
            yield proxy
        finally:
            proxy.refuse()
            server.close()
            await server.wait_closed()

    def refuse(self) -> None:
        """Cut what is connected, and close new connections at once."""
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def accept(self) -> None:
        self._open = True

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        pair = {writer, server_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))
        finally:
            self._writers -= pair


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
