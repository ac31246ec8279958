"""Sandboxes on disk: one directory each, so that any process of the platform finds what another has started.

``root/<sandbox id>/`` holds ``agent.sock``, ``meta.json``, ``groups.json`` and ``agent.log``; names that begin with a dot are the
driver's own. Everything is readable by the platform's user only.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import time
import uuid
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from journeyman.platform.sandboxes import cgroups

META = "meta.json"
SOCKET = "agent.sock"
LOG = "agent.log"
NODE = ".node"
GROUPS = "groups.json"
"""Control groups, written down before anything is started in them."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be confused with a later one of the same id."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The running process with that id; ``None`` when there is none, or only a zombie."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        except OSError:
            return None
        if fields[0] in {b"Z", b"X"}:
            return None
        return cls(pid, int(fields[19]), boot_id())

    def alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self

    def kill(self) -> None:
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            if self.alive():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def node_id(root: Path) -> str:
    """What tells this root's sandboxes from those of other machines: made once, kept in the root."""
    path = root / NODE
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = root / f"{NODE}.{secrets.token_hex(8)}"
    partial.write_text(f"node_{uuid.uuid4().hex}")
    try:
        # Unlike a rename, a link does not replace what another process has put there meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink()
    return path.read_text()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a sandbox: how to reach it and how to end it."""

    token: str
    agent: ProcessIdentity
    monitor: ProcessIdentity | None
    """The outer bubblewrap process."""
    uid: int
    max_snapshot_bytes: int

    def save(self, directory: Path) -> None:
        partial = directory / f"{META}.partial"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(directory / META)

    @classmethod
    def load(cls, directory: Path) -> "Record | None":
        """The record in a directory; ``None`` when there is none that can be read."""
        try:
            data: dict[str, Any] = json.loads((directory / META).read_text())
            monitor = data.pop("monitor")
            return cls(
                agent=ProcessIdentity(**data.pop("agent")),
                monitor=ProcessIdentity(**monitor) if monitor else None,
                **data,
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def alive(self) -> bool:
        return self.agent.alive()

    def end(self) -> None:
        """Kill the sandbox's process 1, and with it, by the kernel's hand, all the others."""
        self.agent.kill()
        if self.monitor is not None:
            self.monitor.kill()
        patience = time.monotonic() + 5.0
        while (self.agent.alive()) and time.monotonic() < patience:
            time.sleep(0.002)


def destroy(directory: Path) -> None:
    """End the sandbox of a directory and remove all that is left of it. Not an error when there is nothing."""
    record = Record.load(directory)
    if record is not None:
        record.end()
    with contextlib.suppress(OSError, ValueError):
        cgroups.remove([str(group) for group in json.loads((directory / GROUPS).read_text())])
    shutil.rmtree(directory, ignore_errors=True)


def sandbox_directories(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except FileNotFoundError:
        return []


def reap(root: Path, keep: set[str]) -> list[str]:
    """End all sandboxes below a root, except those with an id in ``keep``.

    For whoever starts and stops the platform on this machine, while no driver is at work. Returns the ids that were ended.
    """
    ended = []
    for directory in sandbox_directories(root):
        if directory.name not in keep:
            destroy(directory)
            ended.append(directory.name)
    return sorted(ended)


def listen(directory: Path) -> socket.socket:
    """A listening socket in the directory, whose path may be longer than an address can be."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{handle}/{SOCKET}")
        listener.listen(128)
        return listener
    finally:
        os.close(handle)


async def dial(directory: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the agent of a directory. Raises ``OSError``."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        while True:
            try:
                connection.connect(f"/proc/self/fd/{handle}/{SOCKET}")
                break
            except BlockingIOError:  # the backlog is full; the caller has a deadline
                await asyncio.sleep(0.005)
        return await asyncio.open_unix_connection(sock=connection, limit=1024 * 1024)
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(handle)


@asynccontextmanager
async def locked(root: Path, sandbox_id: str) -> AsyncIterator[None]:
    """One process at a time makes or ends a sandbox of that id (or of one of those that share its lock)."""
    handle = os.open(
        root / f".lock-{zlib.crc32(sandbox_id.encode()) % 64}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.01)
        yield
    finally:
        os.close(handle)
