"""The egress proxy, spoken to as a hostile program in a sandbox would."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from journeyman.platform.egress.destinations import Destination
from journeyman.platform.egress.proxy import EgressLimits, EgressProxy, egress_proxy


@dataclass
class Server:
    """Notes what it gets; answers ``GET`` with its path, all else as an echo."""

    port: int = 0
    heard: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.heard.append(data)
            body = data.split(b" ")[1] if data.startswith(b"GET ") else data
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body if data.startswith(b"GET ") else body)
            await writer.drain()
            if data.startswith(b"GET "):
                break
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    yield server
    listener.close()


@asynccontextmanager
async def proxied(
    server: Server, scheme: str = "https", host: str = "git.example.org", limits: EgressLimits | None = None
) -> AsyncIterator[tuple[Path, EgressProxy]]:
    async with egress_proxy(Destination(scheme, host, server.port, ("127.0.0.1",)), limits) as (path, proxy):
        yield path, proxy


async def exchange(path: Path, request: bytes, *, then: bytes = b"") -> bytes:
    """Send a request, and more once an answer has begun; everything that comes back until the end."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    answer = await reader.read(65536)
    if then:
        writer.write(then)
        writer.write_eof()
    async with asyncio.timeout(20):
        answer += await reader.read()
    writer.close()
    return answer


async def test_connect_leads_to_the_pinned_address_whatever_the_name_is(server: Server) -> None:
    async with proxied(server) as (path, proxy):
        answer = await exchange(
            path, b"CONNECT git.example.org:%d HTTP/1.1\r\n\r\n" % server.port, then=b"\x16\x03hello"
        )
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n\x16\x03hello"
        assert proxy.refusals == []


async def test_plain_requests_go_on_in_origin_form_and_one_a_connection(server: Server) -> None:
    async with proxied(server, "http") as (path, _):
        request = b"GET http://git.example.org:%d/a?b HTTP/1.1\r\nHost: git.example.org\r\n" % server.port
        answer = await exchange(path, request + b"Proxy-Connection: Keep-Alive\r\nProxy-Authorization: x\r\n\r\n")
        assert answer.endswith(b"/a?b")
        assert b"Connection: close\r\n" in server.heard[0]
        assert b"roxy-" not in server.heard[0]


@pytest.mark.parametrize(
    "request_line",
    [
        b"CONNECT git.example.org:22 HTTP/1.1",
        b"CONNECT 127.0.0.1:PORT HTTP/1.1",
        b"CONNECT localhost:PORT HTTP/1.1",
        b"CONNECT [::1]:PORT HTTP/1.1",
        b"CONNECT 169.254.169.254:80 HTTP/1.1",
        b"CONNECT git.example.org.evil.org:PORT HTTP/1.1",
        b"CONNECT evil.org@git.example.org:PORT HTTP/1.1",
        b"CONNECT git.example.org:PORT@evil.org:PORT HTTP/1.1",
        b"CONNECT git.example.org:99999 HTTP/1.1",
        b"CONNECT git.example.org HTTP/1.1",
        b"CONNECT  HTTP/1.1",
        b"GET http://git.example.org:PORT/ HTTP/1.1",
        b"GET / HTTP/1.1",
        b"GET https://git.example.org:PORT/ HTTP/1.1",
        b"GET ftp://git.example.org:PORT/ HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"\x05\x01\x00",
    ],
)
async def test_all_else_is_refused(server: Server, request_line: bytes) -> None:
    async with proxied(server) as (path, proxy):
        answer = await exchange(path, request_line.replace(b"PORT", b"%d" % server.port) + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert len(proxy.refusals) == 1
        assert server.heard == []


@pytest.mark.parametrize(
    "target", [b"http://other.example.org:PORT/", b"http://git.example.org:1/", b"/", b"http://a@git.example.org:PORT/"]
)
async def test_plain_requests_for_another_place_are_refused(server: Server, target: bytes) -> None:
    async with proxied(server, "http") as (path, _):
        answer = await exchange(path, b"GET " + target.replace(b"PORT", b"%d" % server.port) + b" HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403")
        assert server.heard == []


async def test_bytes_are_bounded_in_both_directions(server: Server) -> None:
    connect = b"CONNECT git.example.org:%d HTTP/1.1\r\n\r\n" % server.port
    for limits, what in (
        (EgressLimits(received_bytes=1000), "received"),
        (EgressLimits(sent_bytes=1000), "sent"),
    ):
        async with proxied(server, limits=limits) as (path, proxy):
            answer = await exchange(path, connect, then=b"x" * 5000)
            assert len(answer) <= 39 + 1000
            assert proxy.refusals == [f"more than 1000 bytes {what}"]


async def test_connections_are_bounded(server: Server) -> None:
    connect = b"CONNECT git.example.org:%d HTTP/1.1\r\n\r\n" % server.port
    async with proxied(server, limits=EgressLimits(connections=1)) as (path, _):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(connect)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        # Refused before a byte is read, so that held connections cost nothing.
        other, other_writer = await asyncio.open_unix_connection(path)
        assert (await other.read()).startswith(b"HTTP/1.1 403")
        for end in (writer, other_writer):
            end.close()


async def test_silence_ends_a_connection(server: Server) -> None:
    async with proxied(server, limits=EgressLimits(idle_s=0.1)) as (path, _):
        assert await exchange(path, b"CONNECT git.exam") == b""
        connect = b"CONNECT git.example.org:%d HTTP/1.1\r\n\r\n" % server.port
        assert await exchange(path, connect) == b"HTTP/1.1 200 Connection established\r\n\r\n"


async def test_an_endless_head_ends_the_connection(server: Server) -> None:
    async with proxied(server) as (path, _):
        assert await exchange(path, b"CONNECT " + b"x" * 100_000) == b""


async def test_a_server_that_is_gone_is_said(server: Server) -> None:
    gone = Destination("https", "git.example.org", 1, ("127.0.0.1",))
    async with egress_proxy(gone) as (path, proxy):
        assert (await exchange(path, b"CONNECT git.example.org:1 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403")
        assert proxy.refusals == ["git.example.org:1 does not answer"]


async def test_nothing_is_left_behind(server: Server) -> None:
    async with proxied(server) as (path, _):
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.parent.exists()
