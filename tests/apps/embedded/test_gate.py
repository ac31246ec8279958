"""Servers without credentials, in a network namespace of their own, behind the gate."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from journeyman.apps.embedded.launching import launched, service_environment
from journeyman.apps.embedded.ports import choose_port
from journeyman.apps.embedded.processes import ProcessIdentity, identify
from support.waiting import until

SERVER = """
import http.server, os, signal, socket, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        body = "\\n".join(line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
hidden = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
threading.Thread(target=hidden.serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@dataclass
class Gated:
    process: asyncio.subprocess.Process
    port: int
    hidden: int


WITHOUT_PRIVILEGES = """
import ctypes, os, sys
for capability in set(range(64)) - {31}:  # all but CAP_SETFCAP, which root needs to be root in another namespace
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(params=["as we are", "without privileges"])
async def gated(request: pytest.FixtureRequest) -> AsyncIterator[Gated]:
    port = choose_port(set())
    hidden = choose_port({port})
    before = [sys.executable, "-I", "-c", WITHOUT_PRIVILEGES] if request.param == "without privileges" else []
    process = await asyncio.create_subprocess_exec(
        *before,
        *launched([sys.executable, "-c", SERVER, str(port), str(hidden)], gated_ports=[port]),
        env=service_environment(),
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )

    async def answers() -> bool:
        try:
            return (await ask(port, b"")).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    await until(answers)
    yield Gated(process, port, hidden)
    if process.returncode is None:
        process.kill()
    await process.wait()


async def ask(port: int, body: bytes, *, method: str = "GET") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"%s / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            % (method.encode(), len(body))
        )
        writer.write(body)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


async def test_it_has_no_network_but_its_own_loopback(gated: Gated) -> None:
    assert (await ask(gated.port, b"")).endswith(b"\r\n\r\nlo")
    with pytest.raises(OSError, match="onnect"):
        await ask(gated.hidden, b"")


async def test_bytes_arrive_as_they_were_in_any_amount(gated: Gated) -> None:
    bodies = [os.urandom(size) for size in (1, 70_000, 5_000_000)] * 4
    answers = await asyncio.gather(*(ask(gated.port, body, method="POST") for body in bodies))
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.partition(b"\r\n\r\n")[2] == body


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to be another account")
class TestOtherAccounts:
    OTHER = 1_234_567

    def attempt(self, port: int, then: str) -> str:
        code = (
            "import encodings.idna, os, socket\n"
            f"os.setresuid({self.OTHER}, {self.OTHER}, {self.OTHER})\n"
            f"s = socket.create_connection(('127.0.0.1', {port}))\n"
            "body = b'POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 3\\r\\n\\r\\nabc'\n"
            "s.sendall(body)\n" + then
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def test_are_refused(self, gated: Gated) -> None:
        answer = await asyncio.to_thread(
            self.attempt,
            gated.port,
            "try:\n    print(repr(s.recv(100)))\nexcept ConnectionResetError:\n    print('reset')\n",
        )
        assert answer.strip() in {"b''", "reset"}
        assert gated.process.stderr is not None
        line = await gated.process.stderr.readline()
        assert line.decode() == f"refused a connection to port {gated.port} of uid {self.OTHER}\n"
        assert (await ask(gated.port, b"")).endswith(b"lo"), "our own account still gets in"

    async def test_are_refused_when_they_are_gone_before_they_are_looked_at(self, gated: Gated) -> None:
        """The kernel says 0 for the owner of a closed socket, which is root's number."""
        gated.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(self.attempt, gated.port, "s.close()\n")
        gated.process.send_signal(signal.SIGCONT)
        assert gated.process.stderr is not None
        line = await gated.process.stderr.readline()
        assert line.decode() == f"refused a connection to port {gated.port} of uid None\n"


async def test_a_signal_reaches_the_server_and_its_exit_code_comes_back(gated: Gated) -> None:
    gated.process.terminate()
    assert await gated.process.wait() == 7


async def test_killing_the_gate_ends_the_server(gated: Gated) -> None:
    server = program_of(gated)
    gated.process.kill()
    await gated.process.wait()
    await until(lambda: not server.alive)


async def test_a_server_that_is_killed_ends_the_gate_in_the_same_way(gated: Gated) -> None:
    os.kill(program_of(gated).pid, signal.SIGKILL)
    assert await gated.process.wait() == -signal.SIGKILL


def program_of(gated: Gated) -> ProcessIdentity:
    """The gate's only child."""
    [child] = Path(f"/proc/{gated.process.pid}/task/{gated.process.pid}/children").read_text().split()
    found = identify(int(child))
    assert found is not None
    return found
