"""Processes forked from one that has imported everything: as good as those that were started, and as well looked after."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from journeyman.apps.embedded.forking import UNKNOWN_STATUS, ForkedProcess, ForkServer
from journeyman.apps.embedded.logs import LogFile
from journeyman.apps.embedded.ports import choose_port
from journeyman.apps.embedded.roles import fork_server_spec
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.settings import Settings
from support.stack import kill_and_wait, part_of
from support.stand_ins import running
from support.waiting import until

ENV = {"PATH": os.environ["PATH"], "JOURNEYMAN_MARK": "its own"}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[EmbeddedStack]:
    async with fork_server_alone(tmp_path) as stack:
        yield stack


@asynccontextmanager
async def fork_server_alone(tmp_path: Path) -> AsyncIterator[EmbeddedStack]:
    """A stack of a fork server alone."""
    server = ForkServer()
    settings = Settings(data_dir=tmp_path / "data")
    async with EmbeddedStack(
        tmp_path / "data", parts=(), further=[fork_server_spec(server)], settings=settings, fork_server=server
    ) as stack:
        yield stack


async def fork(stack: EmbeddedStack, *arguments: str) -> ForkedProcess | None:
    log = LogFile(stack.directory.logs / "forked.log")
    assert stack.fork_server is not None
    with log.open() as file:
        return await stack.fork_server.fork(arguments, name="forked", env=ENV, directory=stack.directory.root, log=file)


async def replay_engine(stack: EmbeddedStack) -> ForkedProcess:
    """A forked process that runs, and answers."""
    port = choose_port(set())
    process = await fork(stack, "replay-engine", "--port", str(port))
    assert process is not None
    async with httpx.AsyncClient() as client:
        await until(lambda: answers(client, port))
    return process


async def answers(client: httpx.AsyncClient, port: int) -> bool:
    try:
        return (await client.get(f"http://127.0.0.1:{port}/readyz")).is_success
    except httpx.TransportError:
        return False


def log_of(stack: EmbeddedStack) -> str:
    return (stack.directory.logs / "forked.log").read_text()


async def test_a_fork_server_in_which_threads_run_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of tools that watch every Python program of a machine."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with fork_server_alone(tmp_path) as stack:
        assert part_of(stack, "fork-server").status == "ready"
        assert await fork(stack, "vectors") is None
        assert "Threads run after the imports (1)" in (stack.directory.logs / "fork-server.log").read_text()


async def test_a_forked_process_is_one_of_its_own(stack: EmbeddedStack) -> None:
    process = await replay_engine(stack)
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    of_process = Path(f"/proc/{process.pid}")
    assert (of_process / "cwd").readlink() == stack.directory.root
    assert (of_process / "fd/0").readlink() == Path(os.devnull)
    assert (of_process / "fd/1").readlink() == (of_process / "fd/2").readlink() == stack.directory.logs / "forked.log"
    assert (of_process / "cmdline").read_bytes().startswith(b"journeyman forked")
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    with pytest.raises(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


async def test_how_it_ended_is_told(stack: EmbeddedStack) -> None:
    refused = await fork(stack, "vectors")
    assert refused is not None
    assert await refused.wait() == 2
    assert "Set JOURNEYMAN_VECTORS_PATH" in log_of(stack)
    killed = await replay_engine(stack)
    killed.send_signal(signal.SIGKILL)
    assert await killed.wait() == -signal.SIGKILL


async def test_forked_processes_outlive_the_fork_server(stack: EmbeddedStack) -> None:
    process = await replay_engine(stack)
    await kill_and_wait(stack, "fork-server")
    assert running([process.pid]) == [process.pid]
    second = await replay_engine(stack)
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == UNKNOWN_STATUS
    second.send_signal(signal.SIGTERM)
    assert await second.wait() == 0


async def test_without_a_fork_server_none_is_forked(stack: EmbeddedStack) -> None:
    victim = part_of(stack, "fork-server").pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    assert await fork(stack, "vectors") is None


async def test_what_a_frozen_fork_server_forks_too_late_ends_at_once(stack: EmbeddedStack) -> None:
    frozen = part_of(stack, "fork-server").pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    port = choose_port(set())
    assert await fork(stack, "replay-engine", "--port", str(port)) is None
    os.kill(frozen, signal.SIGCONT)
    # Answers come in the order of the requests: the first has been forked when the second is.
    second = await replay_engine(stack)
    await until(lambda: children(frozen) == [second.pid])
    second.send_signal(signal.SIGKILL)
    await second.wait()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_frozen_process_dies_with_its_lifeline(stack: EmbeddedStack) -> None:
    process = await replay_engine(stack)
    os.kill(process.pid, signal.SIGSTOP)
    # What closes our end, without closing the descriptor twice.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, process._lifeline)
    os.close(nothing)
    assert await process.wait() == -signal.SIGKILL


async def test_the_fork_server_knows_no_secret(full_stack: EmbeddedStack) -> None:
    secret = full_stack.settings.internal_secret.get_secret_value().encode()
    for name in ("fork-server", "worker-1"):
        assert secret not in Path(f"/proc/{part_of(full_stack, name).pid}/environ").read_bytes()


async def test_processes_start_without_the_fork_server_while_there_is_none(full_stack: EmbeddedStack) -> None:
    frozen = part_of(full_stack, "fork-server").pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    try:
        await kill_and_wait(full_stack, "replay-engine")
        started = part_of(full_stack, "replay-engine").pid
        assert b"journeyman.apps.cli.main" in Path(f"/proc/{started}/cmdline").read_bytes()
    finally:
        os.kill(frozen, signal.SIGCONT)
    await kill_and_wait(full_stack, "replay-engine")
    assert (
        Path(f"/proc/{part_of(full_stack, 'replay-engine').pid}/cmdline").read_bytes().startswith(b"journeyman replay")
    )


def test_it_is_no_command_for_people() -> None:
    command = [sys.executable, "-m", "journeyman.apps.cli.main", "fork-server"]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert "a part of `journeyman up`" in done.stderr
    assert "Traceback" not in done.stderr
