"""A TCP relay before a server that can go away and come back, on the same port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy.engine import make_url


class Proxy:
    """Connections through it are cut by ``refuse``, and refused until ``accept``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open = True
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def before(cls, host: str, port: int) -> AsyncIterator["Proxy"]:
        proxy = cls(host, port)
        server = await asyncio.start_server(proxy._relay, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            proxy.refuse()
            server.close()
            await server.wait_closed()

    @classmethod
    @asynccontextmanager
    async def to_database(cls, url: str) -> AsyncIterator["Proxy"]:
        """``url`` of the result leads to the same database."""
        parsed = make_url(url)
        assert parsed.host is not None
        assert parsed.port is not None
        async with cls.before(parsed.host, parsed.port) as proxy:
            proxy.url = parsed.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
            yield proxy

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
