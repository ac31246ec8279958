"""The egress proxy: an HTTP proxy on a Unix socket that connects to one pinned destination and to nothing else.

It runs in a process of the platform, outside of the sandbox whose only way out its socket is. ``CONNECT`` is taken for an
``https`` destination, requests with an absolute URL for an ``http`` one. All else is answered with 403 and noted. It
resolves no name: it connects to the addresses that were checked when the destination was made. Bytes, connections and
times are bounded.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from journeyman.platform.egress.destinations import DEFAULT_PORTS, Destination

MIB: Final = 1024 * 1024
_RELAY: Final = Path(__file__).with_name("relay.py").read_text()
_PIECE: Final = 64 * 1024
_MAX_HEAD: Final = 32 * 1024
_MAX_REFUSALS: Final = 20
_HOP_HEADERS: Final = frozenset({"connection", "proxy-connection", "proxy-authorization", "keep-alive"})

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """What one proxy lets through, over its whole life unless said otherwise."""

    received_bytes: int = 2048 * MIB
    sent_bytes: int = 64 * MIB
    connections: int = 16
    """At the same time."""
    connect_s: float = 15.0
    """For each address."""
    idle_s: float = 120.0
    """Without a byte in either direction."""


def relayed(socket: str) -> list[str]:
    """What to put before a program's command line in a sandbox, so that it finds the proxy behind that socket."""
    return ["python3", "-I", "-S", "-c", _RELAY, socket]


class _Refused(Exception):
    pass


class EgressProxy:
    """A proxy for one destination; see the module. ``refusals`` says in words what it did not let through."""

    def __init__(self, destination: Destination, limits: EgressLimits) -> None:
        self._destination = destination
        self._limits = limits
        self._received = 0
        self._sent = 0
        self._open = 0
        self.refusals: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client, from its first byte to its end."""
        self._open += 1
        upstream: asyncio.StreamWriter | None = None
        try:
            if self._open > self._limits.connections:
                raise _Refused(f"more than {self._limits.connections} connections at once")
            async with asyncio.timeout(self._limits.idle_s):
                head = await reader.readuntil(b"\r\n\r\n")
            opening, answer = self._opening(head)
            from_upstream, upstream = await self._connect()
            upstream.write(opening)
            self._count(sent=len(opening))
            writer.write(answer)
            await self._relay((reader, writer), (from_upstream, upstream))
        except _Refused as refusal:
            if len(self.refusals) < _MAX_REFUSALS:
                self.refusals.append(str(refusal))
            if upstream is None:
                body = f"{refusal}\n".encode("utf-8", "replace")
                writer.write(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n")
                writer.write(b"Content-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                with contextlib.suppress(OSError):
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client sees its connection end
        finally:
            self._open -= 1
            for end in (writer, upstream):
                if end is not None:
                    end.close()

    def _opening(self, head: bytes) -> tuple[bytes, bytes]:
        """What to send upstream first, and what to answer the client first. Raises :class:`_Refused`."""
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target, _, version = rest.rpartition(" ")
        if len(head) > _MAX_HEAD or not version.startswith("HTTP/1.") or any("\n" in line for line in lines):
            raise _Refused("a request that is not HTTP/1")
        if method == "CONNECT":
            self._check("https", f"//{target}")
            return b"", b"HTTP/1.1 200 Connection established\r\n\r\n"
        self._check("http", target)
        parts = urlsplit(target)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        kept = [line for line in lines[1:-2] if line.partition(":")[0].strip().lower() not in _HOP_HEADERS]
        # One request a connection: a later one cannot name another destination.
        request = [f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
        return "\r\n".join(request).encode("latin-1"), b""

    def _check(self, scheme: str, target: str) -> None:
        try:
            parts = urlsplit(target)
            host = parts.hostname or ""
            port = parts.port or DEFAULT_PORTS[scheme]
            plain = "@" not in parts.netloc and (scheme == "https" or parts.scheme == "http")
        except ValueError:
            raise _Refused("a request without a valid destination") from None
        if not plain or scheme != self._destination.scheme or not self._destination.matches(host, port):
            raise _Refused(f"{scheme} to {host[:200]}:{port}")

    async def _connect(self) -> Streams:
        for address in self._destination.addresses:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(self._limits.connect_s):
                    return await asyncio.open_connection(address, self._destination.port, limit=_PIECE)
        raise _Refused(f"{self._destination.host}:{self._destination.port} does not answer")

    async def _relay(self, client: Streams, upstream: Streams) -> None:
        """Copy both ways until the server ends, a limit is reached, or nothing moves for ``idle_s``."""
        download = asyncio.ensure_future(self._copy(upstream[0], client[1], received=True))
        upload = asyncio.ensure_future(self._copy(client[0], upstream[1], received=False))
        both = pending = {download, upload}
        try:
            while download in pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    ended.result()
        finally:
            for copy in both:
                copy.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, received: bool) -> None:
        while True:
            # A download leaves the other direction silent for as long as it takes.
            async with asyncio.timeout(self._limits.idle_s if received else None):
                data = await source.read(_PIECE)
            if not data:
                break
            self._count(**{"received" if received else "sent": len(data)})
            target.write(data)
            async with asyncio.timeout(self._limits.idle_s):
                await target.drain()
        if target.can_write_eof():
            target.write_eof()

    def _count(self, *, received: int = 0, sent: int = 0) -> None:
        self._received += received
        self._sent += sent
        for name, value, limit in (
            ("received", self._received, self._limits.received_bytes),
            ("sent", self._sent, self._limits.sent_bytes),
        ):
            if value > limit:
                raise _Refused(f"more than {limit} bytes {name}")


@contextlib.asynccontextmanager
async def egress_proxy(
    destination: Destination, limits: EgressLimits | None = None
) -> AsyncIterator[tuple[Path, EgressProxy]]:
    """Serve a proxy; yields its socket, which a sandbox of any uid may be given, and the proxy.

    The socket lies in a directory that only the platform's own user can enter.
    """
    proxy = EgressProxy(destination, limits or EgressLimits())
    directory = Path(tempfile.mkdtemp(prefix="journeyman-egress-"))
    running: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.serve(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    try:
        path = directory / "proxy.sock"
        server = await asyncio.start_unix_server(accept, path, limit=_MAX_HEAD)
        os.chmod(path, 0o666)  # noqa: PTH101,S103  the directory is closed; sandboxes have other uids
        try:
            yield path, proxy
        finally:
            server.close()
            for task in list(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await server.wait_closed()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
