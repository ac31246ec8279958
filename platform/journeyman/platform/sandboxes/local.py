"""The local driver: bubblewrap on this machine.

Sandboxes are started detached from the process that leases them, and found again on disk (:mod:`.registry`).
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import select
import subprocess
import threading
import time
import zlib
from functools import partial
from pathlib import Path

from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.sandboxes import bwrap, cgroups, enforcement, registry
from journeyman.platform.sandboxes.errors import LimitsNotEnforced, SandboxLost, SandboxUnavailable
from journeyman.platform.sandboxes.port import HOME, EnforcementReport, Limits, Sandbox, SandboxSpec
from journeyman.platform.sandboxes.registry import ProcessIdentity, Record
from journeyman.platform.sandboxes.remote import AgentSandbox
from journeyman.platform.sandboxes.seccomp import build_filter

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_START_S = 20.0
_FIRST_UID, _UIDS = 1_900_000_000, 65_536
_MIN_DISK = 1024 * 1024
_MONITORS: list[subprocess.Popen[bytes]] = []
"""Started by this process and not yet seen to end. Of the process, since sandboxes outlive the driver that leased them."""
_MONITORS_LOCK = threading.Lock()
_BASIC_ENVIRONMENT = {
    "PATH": bwrap.path_variable(home=False),
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",  # noqa: S108  a private one
}
_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 97; shift; done; shift; exec "$@"'


class LocalSandboxDriver:
    """Leases bubblewrap sandboxes; state lives below ``root``, which belongs to the platform alone.

    ``allow_unenforced_limits``: lease although :meth:`report` says that some limit is enforced by nothing.
    """

    def __init__(self, root: Path, *, allow_unenforced_limits: bool = False) -> None:
        self._root = root.absolute()
        self._allow_unenforced = allow_unenforced_limits
        self._machine: bwrap.Machine | None = None
        self._examining = asyncio.Lock()
        self._hierarchy: cgroups.Hierarchy | None = None
        self._complaint: str | None = None
        self._node: str | None = None

    @property
    def node(self) -> str | None:
        if self._node is None:
            self._node = registry.node_id(self._root)
        return self._node

    async def lease(self, spec: SandboxSpec) -> Sandbox:
        _check(spec)
        machine = await self._prepare()
        async with registry.locked(self._root, spec.sandbox_id):
            directory = self._directory(spec.sandbox_id)
            record = Record.load(directory)
            if record is not None and record.alive():
                sandbox = self._sandbox(spec.sandbox_id, record)
                with contextlib.suppress(SandboxLost):  # it may be dying right now
                    await sandbox.renew(spec.lease_s)
                    return sandbox
            if directory.exists():
                await asyncio.to_thread(registry.destroy, directory)
            self._refuse_unenforced(spec.limits)
            try:
                record = await asyncio.to_thread(self._start, machine, directory, spec)
            except OSError as error:
                raise SandboxUnavailable(f"a sandbox could not be started below {self._root}: {error}") from error
        return self._sandbox(spec.sandbox_id, record)

    async def connect(self, sandbox_id: str) -> Sandbox:
        record = Record.load(self._directory(sandbox_id))
        if record is None or not record.alive():
            _collect_monitors()
            raise SandboxLost(f"sandbox {sandbox_id} is gone: it was released, its lease ended, or it was killed")
        sandbox = self._sandbox(sandbox_id, record)
        await sandbox.ping()
        return sandbox

    async def release(self, sandbox_id: str) -> None:
        directory = self._directory(sandbox_id)
        if not directory.exists():
            _collect_monitors()
            return
        async with registry.locked(self._root, sandbox_id):
            await asyncio.to_thread(registry.destroy, directory)
        _collect_monitors()

    async def list_ids(self) -> list[str]:
        _collect_monitors()
        return sorted(
            path.name
            for path in registry.sandbox_directories(self._root)
            if (record := Record.load(path)) is not None and record.alive()
        )

    async def report(self) -> EnforcementReport:
        try:
            machine = await self._prepare()
        except SandboxUnavailable as error:
            complaint = self._complaint or error.message
            return enforcement.report(self._hierarchy, Limits(), complaint, privileged=os.geteuid() == 0)
        return enforcement.report(self._hierarchy, Limits(), None, privileged=machine.privileged)

    async def close(self) -> None:
        _collect_monitors()

    # the machine

    async def _prepare(self) -> bwrap.Machine:
        async with self._examining:
            if self._machine is None:
                self._machine = await asyncio.to_thread(self._examine)
        return self._machine

    def _examine(self) -> bwrap.Machine:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        machine = bwrap.Machine.prepare(self._root)
        self._complaint = bwrap.probe(machine)
        if self._complaint is not None:
            raise bwrap.explain(self._complaint)
        self._hierarchy = cgroups.detect()
        return machine

    def _refuse_unenforced(self, limits: Limits) -> None:
        report = enforcement.report(self._hierarchy, limits, None, privileged=os.geteuid() == 0)
        if report.unenforced and not self._allow_unenforced:
            names = ", ".join(report.unenforced)
            raise LimitsNotEnforced(
                f"this machine cannot enforce these limits of a sandbox: {names}; 'journeyman status' says why, and "
                "JOURNEYMAN_SANDBOX_ALLOW_UNENFORCED_LIMITS=true leases all the same",
                limits=report.unenforced,
            )

    def _directory(self, sandbox_id: str) -> Path:
        if not _ID.fullmatch(sandbox_id):
            raise InvalidInput(f"a sandbox id must match {_ID.pattern}, not {sandbox_id!r}")
        return self._root / sandbox_id

    def _sandbox(self, sandbox_id: str, record: Record) -> AgentSandbox:
        dial = partial(registry.dial, self._root / sandbox_id)
        return AgentSandbox(sandbox_id, dial, record.token, max_snapshot_bytes=record.max_snapshot_bytes)

    # starting one

    def _start(self, machine: bwrap.Machine, directory: Path, spec: SandboxSpec) -> Record:
        """Start a sandbox and wait until its agent serves. Blocks; leaves nothing behind when it fails."""
        _collect_monitors()
        directory.mkdir(mode=0o700)
        group: cgroups.ControlGroup | None = None
        child: subprocess.Popen[bytes] | None = None
        handles: list[int] = []
        info_read = -1
        agent: ProcessIdentity | None = None
        try:
            if self._hierarchy is not None:
                group = self._hierarchy.create(f"journeyman-{spec.sandbox_id}", spec.limits)
                (directory / registry.GROUPS).write_text(json.dumps(group.directories))
            with registry.listen(directory) as listener:
                ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
                info_read, info_write = os.pipe2(os.O_CLOEXEC)
                log = os.open(directory / registry.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                handles += [ready_read, ready_write, info_read, info_write, log]
                counters: dict[str, int] = {}
                watched = (
                    {"oom_fd": group.oom_file, "stat_fd": group.stat_file, "pids_fd": group.pids_file} if group else {}
                )
                for key, path in watched.items():
                    if path:
                        counters[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                        handles.append(counters[key])
                token, uid = secrets.token_hex(16), self._choose_uid(machine, spec.sandbox_id)
                config = {
                    "token": token,
                    "listen_fd": listener.fileno(),
                    "ready_fd": ready_write,
                    **counters,
                    "stat_key": group.stat_key if group else "",
                    "outer_uid": uid if machine.privileged else 0,
                    "inner_uid": bwrap.INNER_UID,
                    "home": HOME,
                    "basic_env": _BASIC_ENVIRONMENT,
                    "env": {**_BASIC_ENVIRONMENT, "PATH": bwrap.path_variable(home=True), **spec.env},
                    "lease_s": spec.lease_s,
                    "memory_bytes": spec.limits.memory_bytes,
                    "pids": spec.limits.pids,
                    "disk_bytes": spec.limits.disk_bytes,
                    "inodes": min(262_144, max(4_096, spec.limits.disk_bytes // 8192)),
                    "rlimits": enforcement.resource_limits(self._hierarchy, spec.limits),
                    "affinity": enforcement.affinity(self._hierarchy, spec.limits, spec.sandbox_id),
                    "nice": -5 if machine.privileged else 0,
                    "command_nice": 0 if machine.privileged else 5,
                    "seccomp": build_filter(deny_unaccounted_memory=group is None or group.oom_file is None).hex(),
                }
                argv = bwrap.arguments(machine, info_fd=info_write, egress=spec.egress)
                joins = group.joins if group else []
                child = subprocess.Popen(
                    ["/bin/sh", "-c", _JOIN, "sh", *joins, "--", *argv],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=[listener.fileno(), ready_write, info_write, *counters.values()],
                    start_new_session=True,
                    cwd="/",
                    env={},
                )
            os.close(ready_write)
            os.close(info_write)
            handles.remove(ready_write)
            handles.remove(info_write)
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(config).encode() + b"\n")
                child.stdin.flush()
            answer = _read_line(ready_read, time.monotonic() + _START_S)
            if not answer.get("ok"):
                complaint = str(answer.get("error", "")) or (directory / registry.LOG).read_text(errors="replace")
                raise bwrap.explain(complaint)
            agent = _started(info_read)
            if agent is None:
                raise SandboxUnavailable("a sandbox ended right after its start; lease again")
            record = Record(
                token=token,
                agent=agent,
                monitor=ProcessIdentity.of(child.pid),
                uid=uid,
                max_snapshot_bytes=2 * spec.limits.disk_bytes,
            )
            record.save(directory)
            # The agent waits for this: a sandbox that nobody could find again ends by itself.
            with contextlib.suppress(BrokenPipeError), child.stdin:
                child.stdin.write(b"go\n")
            with _MONITORS_LOCK:
                _MONITORS.append(child)
        except BaseException:
            if child is not None:
                started = agent or _started(info_read)
                if started is not None:
                    started.kill()
                child.kill()
                child.wait()
                if child.stdin is not None:
                    with contextlib.suppress(OSError):
                        child.stdin.close()
            registry.destroy(directory)
            if group is not None:
                cgroups.remove(group.directories)
            raise
        finally:
            for handle in handles:
                os.close(handle)
        return record

    def _choose_uid(self, machine: bwrap.Machine, sandbox_id: str) -> int:
        """A uid that owns nothing on this machine, and that no other sandbox has."""
        if not machine.privileged:
            return os.geteuid()
        first, count = _uid_range()
        taken = {
            record.uid for path in registry.sandbox_directories(self._root) if (record := Record.load(path)) is not None
        }
        start = zlib.crc32(sandbox_id.encode())
        for offset in range(count):
            uid = first + (start + offset) % count
            if uid not in taken:
                return uid
        raise SandboxUnavailable("all uids for sandboxes are taken; release some")


def _collect_monitors() -> None:
    """Take the exit status of monitors that have ended, so that none stays a zombie."""
    with _MONITORS_LOCK:
        _MONITORS[:] = [child for child in _MONITORS if child.poll() is None]


def _uid_range() -> tuple[int, int]:
    """First uid and number of uids for sandboxes, among those that exist in this user namespace."""
    extents = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for inside, _, count in extents:
        if inside <= _FIRST_UID and inside + count >= _FIRST_UID + _UIDS:
            return _FIRST_UID, _UIDS
    inside, _, count = max(extents, key=lambda extent: extent[2])
    use = min(_UIDS, count // 4)
    if use < 1:
        raise SandboxUnavailable(
            "the platform runs as root of a user namespace with a single uid, so that sandboxes would have root's; "
            "run it as an ordinary user, or map more uids",
            retryable=False,
        )
    return inside + count - use, use


def _started(info: int) -> ProcessIdentity | None:
    """The sandbox's process 1, which bubblewrap tells of once and at once; ``None`` when it did not get that far."""
    readable, _, _ = select.select([info], [], [], 0.1) if info >= 0 else ([], [], [])
    try:
        return ProcessIdentity.of(int(json.loads(os.read(info, 65536))["child-pid"])) if readable else None
    except (ValueError, KeyError):
        return None


def _read_line(handle: int, deadline: float) -> dict[str, object]:
    """A line of JSON from a pipe; empty when it was closed or nothing came in time."""
    data = b""
    while not data.endswith(b"\n"):
        readable, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return {"error": f"the agent was not ready after {_START_S:.0f} s"}
        chunk = os.read(handle, 65536)
        if not chunk:
            return {}
        data += chunk
    answer: dict[str, object] = json.loads(data)
    return answer


def _check(spec: SandboxSpec) -> None:
    if spec.toolset not in bwrap.TOOLSETS:
        raise InvalidInput(f"unknown toolset {spec.toolset!r}; there is: {', '.join(sorted(bwrap.TOOLSETS))}")
    limits = spec.limits
    if min(limits.memory_bytes, limits.disk_bytes) < _MIN_DISK or limits.pids < 4 or limits.open_files < 16:
        raise InvalidInput(
            "the limits of a sandbox are too small: 1 MiB of memory and disk, 4 pids and 16 files at least"
        )
    if not 0 < limits.cpus <= 1024:
        raise InvalidInput(f"cpus must be above 0 and at most 1024, not {limits.cpus}")
    if spec.lease_s <= 0:
        raise InvalidInput(f"lease_s must be positive, not {spec.lease_s}")
    if any("\0" in text or not name or "=" in name for name, value in spec.env.items() for text in (name, value)):
        raise InvalidInput("names and values of environment variables cannot hold NUL bytes, nor names '='")
