"""The agent: process 1 of a sandbox. One file, standard library only, run as ``python3 -I -S -X utf8 agent.py``.

It reads its configuration from stdin, builds the private file systems, gives up every privilege, and then serves a
framed protocol on a listening socket that it inherits as a file descriptor. Nothing of the platform can be imported here.

A frame is two big-endian 32-bit lengths, a JSON header, and payload bytes. A connection carries one request at a time:
a header with ``op`` and ``token``, perhaps more frames, then answers up to one with ``end`` or ``error``.

One thread does everything. Requests are generators that yield ``None`` (go on next turn), ``"frame"`` (the next frame of
the request), ``"wake"`` (until woken) or a monotonic time; long work is cut into slices, so that the agent answers while
commands flood it. It keeps no more than a bounded number of bytes for any command or connection.

Trust: processes in the sandbox run under the agent's own uid. They cannot signal it (it is process 1 of its namespace),
read it (it is not dumpable) or change its limits (the seccomp filter sees to that); they have no path to its socket.
"""

# What is shorter with pathlib and contextlib is not: they take longer to import than all the rest of the start.
# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH108, PTH110, PTH112, PTH114, PTH115, PTH118, PTH119, PTH123, PTH208, PTH211, SIM105

from __future__ import annotations

import _socket
import ctypes
import errno
import gc
import os
import select
import stat
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections import deque
    from collections.abc import Callable, Generator, Iterable
    from json import dumps, loads
    from typing import Any, Final, Literal

    Wait = Literal["frame", "wake", "drain"] | float | None
    Steps = Generator[Wait, Any, None]
    Entry = tuple[str, int, int, str]
    """Kind (``f``, ``d``, ``l``), mode, size, and SHA-256 or link target."""
    Key = tuple[int, int, int, int]
    """Size, mtime, ctime, inode. ctime cannot be set by a process, so that a changed file has a changed key."""
else:
    # What the public modules add to these takes half of the time that a sandbox needs to start.
    import _signal as signal
    from _collections import deque

    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner
    except ImportError:  # an interpreter without the accelerators
        from json import dumps, loads
    else:

        class _Options:
            strict, object_hook, object_pairs_hook = True, None, None
            parse_float, parse_int, parse_constant = float, int, float

        _scan = make_scanner(_Options)
        _encode = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, True)

        def loads(data: str | bytes | bytearray) -> Any:
            """A value from JSON text without space around it. Raises ``ValueError``."""
            try:
                return _scan(data if isinstance(data, str) else bytes(data).decode(), 0)[0]
            except (StopIteration, SystemError):  # the latter is 3.11's way to say that json.decoder is not loaded
                raise ValueError("not JSON") from None

        def dumps(value: Any) -> str:
            """Compact JSON, ASCII only."""
            return "".join(_encode(value, 0))


MAX_HEADER: Final = 256 * 1024
MAX_PAYLOAD: Final = 1024 * 1024 + 64 * 1024
HIGH_WATER: Final = 512 * 1024
STREAM_FRAME: Final = 32 * 1024
CHUNK: Final = 256 * 1024
MAX_STDIN: Final = 64 * 1024 * 1024
MAX_READ: Final = 16 * 1024 * 1024
MAX_CARRIED_FILES: Final = 1000
MAX_CONNECTIONS: Final = 128
MAX_RUNNING: Final = 64
KEPT_OUTPUT: Final = 64 * 1024 * 1024
DRAIN_S: Final = 0.1
GRACE_S: Final = 0.5
LEFTOVER_S: Final = 1.0
WATCH_S: Final = 0.1
ROOTS: Final = ("workspace", "artifacts")
MARKER: Final = "JOURNEYMAN_EXEC_ID"

libc = ctypes.CDLL(None, use_errno=True)


class OpError(Exception):
    """A refused request; the code is part of the protocol."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


# --- isolation: what only happens once, before anything of the task runs -------------------------------------------

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAP_AMBIENT = 4, 24, 38, 22, 47
CLONE_NEWUSER = 0x10000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_RDONLY, MS_REMOUNT, MS_BIND = 2, 4, 8, 1, 32, 4096
MNT_DETACH = 2
MASKED = ("/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/sched_debug", "/proc/timer_list", "/proc/latency_stats")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    _check(
        libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount {target}",
    )


def build_scratch(config: dict[str, Any]) -> None:
    """One size-limited tmpfs behind all writable directories: bytes and inodes run out together, and only here."""
    scratch = "/scratch"
    size, inodes = int(config["disk_bytes"]), int(config["inodes"])
    _mount("scratch", scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},nr_inodes={inodes},mode=0755")
    owner = int(config["outer_uid"])
    for name, target, mode in (
        ("workspace", "/workspace", 0o755),
        ("artifacts", "/artifacts", 0o755),
        ("tmp", "/tmp", 0o1777),  # noqa: S108  a private one
        ("home", str(config["home"]), 0o755),
        ("shm", "/dev/shm", 0o1777),  # noqa: S108  a private one
    ):
        source = f"{scratch}/{name}"
        os.mkdir(source)
        os.chmod(source, mode)
        os.chown(source, owner, owner)
        _mount(source, target, None, MS_BIND)
    _check(libc.umount2(scratch.encode(), MNT_DETACH), "umount /scratch")
    for path in MASKED:
        if os.path.exists(path):
            _mount("/dev/null", path, None, MS_BIND)


def hide_agent() -> None:
    """Cover ``/proc/1``. Some files there may be written by the agent's uid, which is also that of the commands."""
    _mount("/scratch", "/proc/1", None, MS_BIND)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def enter_user_namespace(outer_uid: int, inner_uid: int) -> None:
    """Enter a user namespace that owns none of the mounts, with one uid in it.

    The map is written by a helper that stays behind with its privileges: inside, there are none to write it with.
    """
    me = os.getpid()
    start_read, start_write = os.pipe()
    done_read, done_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.read(start_read, 1)
            _write(f"/proc/{me}/uid_map", f"{inner_uid} {outer_uid} 1")
            _write(f"/proc/{me}/gid_map", f"{inner_uid} {outer_uid} 1")
            hide_agent()
            os.write(done_write, b"k")
        finally:
            os._exit(0)
    os.close(done_write)
    try:
        _check(libc.unshare(CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")
        os.write(start_write, b"x")
        if os.read(done_read, 1) != b"k":
            raise OSError(errno.EPERM, "the uid map of the sandbox could not be written")
    finally:
        for fd in (start_read, start_write, done_read):
            os.close(fd)
        os.waitpid(helper, 0)
    try:
        os.setgroups([])
    except PermissionError:
        pass  # an ordinary user's namespace may not; its groups own nothing that is visible here
    os.setresgid(inner_uid, inner_uid, inner_uid)
    os.setresuid(inner_uid, inner_uid, inner_uid)
    try:
        _write("/proc/sys/user/max_user_namespaces", "0")
    except OSError:
        pass  # the seccomp filter refuses new user namespaces as well


def drop_privileges() -> None:
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    libc.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(libc.capset(header, bytes(24)), "capset")
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def install_filter(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _check(libc.prctl(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def isolate(config: dict[str, Any]) -> None:
    """From the privileges bubblewrap left to none at all. Raises ``OSError`` when a step is not possible."""
    keyctl = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if keyctl is not None:
        libc.syscall(ctypes.c_long(keyctl), ctypes.c_long(1), None)  # a session keyring of its own
    build_scratch(config)
    if config.get("affinity"):
        os.sched_setaffinity(0, config["affinity"])
    if config.get("nice"):
        os.setpriority(os.PRIO_PROCESS, 0, int(config["nice"]))
    enter_user_namespace(int(config["outer_uid"]), int(config["inner_uid"]))
    drop_privileges()
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    install_filter(bytes.fromhex(config["seccomp"]))


# --- processes -----------------------------------------------------------------------------------------------------


class Exec:
    """A command: its process, and a bounded record of its output (the first half of the limit, and the last)."""

    def __init__(self, exec_id: str, limit: int) -> None:
        self.id = exec_id
        self.half = max(limit, 2) // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0
        self.pid = 0
        self.started = time.monotonic()
        self.start_ticks = 0
        self.ended = 0.0
        self.deadline = float("inf")
        self.exited_at: float | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.finished = False
        self.timed_out = False
        self.oom = False
        self.oom_mark = 0
        self.pids_hit = False
        self.disk_full = False
        self.end_leftovers = False
        self.leftovers = 0
        self.killing = False
        self.pipe = -1
        self.stdin_fd = -1
        self.stdin = memoryview(b"")
        self.watchers: set[Task] = set()

    def append(self, data: bytes) -> None:
        self.total += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            self.tail += data
            if len(self.tail) > self.half + CHUNK:
                del self.tail[: len(self.tail) - self.half]

    def piece(self, cursor: int) -> tuple[int, bytes]:
        """Up to a stream frame of output from the cursor on, or from the next byte that is still kept."""
        if cursor < len(self.head):
            return cursor, bytes(self.head[cursor : cursor + STREAM_FRAME])
        start = self.total - len(self.tail)
        cursor = max(cursor, start)
        return cursor, bytes(self.tail[cursor - start : cursor - start + STREAM_FRAME])

    def kept(self) -> tuple[bytes, bytes]:
        if len(self.head) + len(self.tail) == self.total and self.total <= 2 * self.half:
            return bytes(self.head), bytes(self.tail)
        return bytes(self.head), bytes(self.tail[max(0, len(self.tail) - self.half) :])

    def forget_output(self) -> int:
        freed = len(self.head) + len(self.tail)
        self.head, self.tail = bytearray(), bytearray()
        return freed


class Process:
    """One line of ``/proc``."""

    __slots__ = ("parent", "pid", "session", "started")

    def __init__(self, pid: int) -> None:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        self.pid = pid
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.started = int(fields[19])


def processes() -> dict[int, Process]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                found[int(name)] = Process(int(name))
            except (OSError, IndexError, ValueError):
                continue
    return found


def exec_id_of(pid: int) -> str | None:
    """The command that a process says it belongs to, by the environment it was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read(256 * 1024)
    except OSError:
        return None
    key = MARKER.encode() + b"="
    for variable in environment.split(b"\0"):
        if variable.startswith(key):
            return os.fsdecode(variable[len(key) :])
    return None


def threads_of(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def resident_bytes(pid: int) -> int:
    """Anonymous memory of a process; pages that it shares with a parent since a fork count in full for both."""
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def proportional_bytes(pid: int) -> int:
    """Anonymous memory of a process, shared pages divided by who shares them. Takes milliseconds for a large one."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss_Anon:"):
                    return int(line.split()[1]) * 1024
    except PermissionError:
        pass  # it made itself unreadable: its pages count in full
    return resident_bytes(pid)


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


# --- files ---------------------------------------------------------------------------------------------------------


def file_error(error: OSError, path: str) -> OpError:
    kind = {
        errno.ENOENT: "not_found",
        errno.EISDIR: "is_a_directory",
        errno.ENOTDIR: "not_a_directory",
        errno.ENOSPC: "no_space",
        errno.EDQUOT: "no_space",
        errno.EACCES: "permission",
        errno.EPERM: "permission",
        errno.EROFS: "permission",
        errno.ELOOP: "outside",
        errno.ENXIO: "not_a_file",
    }.get(error.errno or 0, "invalid")
    return OpError(f"file_{kind}", f"{path}: {error.strerror or error}")


class Files:
    """File operations, confined to a few directories without ever following a link while opening.

    A path is resolved first; what it resolves to must lie inside, and is then opened component by component with
    ``O_NOFOLLOW``, so that a link put there in between makes the operation fail, not escape.
    """

    def __init__(self, roots: Iterable[str]) -> None:
        self.roots = tuple(roots)

    def resolve(self, path: str) -> tuple[str, list[str]]:
        if "\0" in path:
            raise OpError("file_invalid", "a path cannot hold a NUL byte")
        real = os.path.realpath(os.path.join("/workspace", path))
        for root in self.roots:
            if real == root:
                return root, []
            if real.startswith(root + "/"):
                return root, real[len(root) + 1 :].split("/")
        raise OpError("file_outside", f"{path}: outside of {', '.join(self.roots)}")

    def directory(self, root: str, parts: list[str], *, create: bool = False) -> int:
        """A descriptor of the directory; the caller closes it."""
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in parts:
            try:
                if create:
                    try:
                        os.mkdir(part, 0o755, dir_fd=fd)
                    except FileExistsError:
                        pass
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def open_file(self, path: str) -> int:
        root, parts = self.resolve(path)
        if not parts:
            raise OpError("file_is_a_directory", f"{path}: is a directory")
        parent = self.directory(root, parts[:-1])
        try:
            fd = os.open(
                parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=parent
            )
        finally:
            os.close(parent)
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            kind = "is_a_directory" if stat.S_ISDIR(mode) else "not_a_file"
            raise OpError(f"file_{kind}", f"{path}: {'is a directory' if stat.S_ISDIR(mode) else 'not a regular file'}")
        return fd


def disk_is_full() -> bool:
    """Whether the file system behind all writable directories has no room for one more page, or file."""
    status = os.statvfs("/workspace")
    return status.f_bavail == 0 or status.f_favail == 0


def search_files(start: str, pattern: str, glob: str | None, limit: int) -> None:
    """Run in a process of its own, since a regular expression can take for ever; prints hits as JSON lines."""
    import fnmatch
    import re

    expression = re.compile(pattern)
    out = os.fdopen(1, "wb", 64 * 1024)
    hits = 0
    stack = [start]
    while stack:
        current = stack.pop()
        if os.path.isdir(current) and not os.path.islink(current):
            try:
                names = sorted(os.listdir(current), reverse=True)
            except OSError:
                continue
            stack.extend(os.path.join(current, name) for name in names if name != ".git")
            continue
        if glob:
            subject = os.path.relpath(current, start) if "/" in glob else os.path.basename(current)
            plain = glob.replace("**/", "")
            if not (fnmatch.fnmatchcase(subject, glob) or fnmatch.fnmatchcase(subject, plain)):
                continue
        try:
            fd = os.open(current, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode) or b"\0" in file.read(4096):
                    continue
                file.seek(0)
                for number, raw in enumerate(iter(lambda: file.readline(64 * 1024), b""), 1):
                    line = raw.decode("utf-8", "replace").rstrip("\r\n")
                    if expression.search(line):
                        out.write(dumps([current, number, line[:500]]).encode() + b"\n")
                        hits += 1
                        if hits >= limit:
                            out.flush()
                            return
        except OSError:
            continue
    out.flush()


# --- snapshots -----------------------------------------------------------------------------------------------------


def key_of(status: os.stat_result) -> Key:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def sha256() -> Any:
    from _hashlib import openssl_sha256

    return openssl_sha256()


class Tree:
    """What is known of the snapshot roots from the last scan that was given a digest."""

    def __init__(self) -> None:
        self.digest: str | None = None
        self.entries: dict[str, Entry] = {}
        self.keys: dict[str, Key] = {}
        """Of files whose content is certainly the one of the entry as long as the key is the same."""
        self.pending: tuple[str, dict[str, Entry], dict[str, Key]] | None = None
        self.counter = 0
        release = os.uname().release.split(".")
        modern = (int(release[0]), int("".join(c for c in release[1] if c.isdigit()) or 0)) >= (6, 13)
        # Since 6.13 a change after a stat gets a timestamp of its own. Before, two changes within one tick look the same.
        self.tick_ns = 0 if modern else 25_000_000

    def mapped_inodes(self) -> set[int]:
        """Inodes that a process has mapped shared and writable: their content changes without a new timestamp."""
        inodes = set()
        for pid in os.listdir("/proc"):
            if not pid.isdigit() or pid == "1":
                continue
            try:
                with open(f"/proc/{pid}/maps", "rb") as file:
                    for line in file:
                        fields = line.split(None, 5)
                        if fields[1][1:2] == b"w" and fields[1][3:4] == b"s":
                            inodes.add(int(fields[4]))
            except OSError:
                continue
        return inodes

    def certain(self, key: Key, seen_ns: int) -> bool:
        return not self.tick_ns or max(key[1], key[2]) < seen_ns - self.tick_ns


def open_readable(path: str) -> int:
    """Open a file for reading even where its owner may not: the mode is put back at once."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except PermissionError:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        os.chmod(path, mode | 0o400)
        try:
            return os.open(path, flags)
        finally:
            os.chmod(path, mode)


def list_directory(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except PermissionError:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        os.chmod(path, mode | 0o700)
        try:
            with os.scandir(path) as entries:
                found = list(entries)
                for entry in found:
                    entry.stat(follow_symlinks=False)  # kept in the entry: later the directory is closed again
                return found
        finally:
            os.chmod(path, mode)


def remove_below(path: str) -> Generator[None, None, None]:
    """Remove everything below a directory, a slice at a time."""
    stack = [(path, False)]
    while stack:
        current, emptied = stack.pop()
        if emptied:
            os.rmdir(current)
            continue
        if current != path:
            os.chmod(current, 0o700)
            stack.append((current, True))
        for entry in list_directory(current):
            if entry.is_dir(follow_symlinks=False):
                stack.append((entry.path, False))
            else:
                os.unlink(entry.path)
        yield


# --- the loop ------------------------------------------------------------------------------------------------------


class Task:
    """A generator and what it waits for."""

    __slots__ = ("connection", "gen", "queued", "until", "wait")

    def __init__(self, gen: Steps, connection: Connection | None) -> None:
        self.gen = gen
        self.connection = connection
        self.wait: Wait = None
        self.queued = False


class Connection:
    __slots__ = ("fd", "frames", "inbox", "mask", "out", "sock", "task")

    def __init__(self, sock: _socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.inbox = bytearray()
        self.out = bytearray()
        self.frames: deque[tuple[dict[str, Any], bytes]] = deque()
        self.task: Task | None = None
        self.mask = 0

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        encoded = dumps(header).encode()
        self.out += struct.pack(">II", len(encoded), len(payload))
        self.out += encoded
        self.out += payload


class Agent:
    """The server. Its state is all there is: it is never restarted, it ends with its sandbox."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.token: str = config["token"]
        self.config = config
        self.env: dict[str, str] = config["env"]
        self.basic_env: dict[str, str] = config["basic_env"]
        self.memory_bytes = int(config["memory_bytes"])
        self.pids = int(config["pids"])
        self.lease_end = time.monotonic() + float(config["lease_s"])
        self.files = Files(("/workspace", "/artifacts", "/tmp", config["home"]))  # noqa: S108  a private one
        self.tree = Tree()
        self.shell = next((path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path)), "/bin/sh")
        self.execs: dict[str, Exec] = {}
        self.by_pid: dict[int, Exec] = {}
        self.tidied: set[Exec] = set()
        """Commands that have ended, but not yet what they left behind."""
        self.internal = 0
        self.kept = 0
        self.finished: deque[Exec] = deque()
        self.ready: deque[Task] = deque()
        self.sleeping: set[Task] = set()
        self.connections: dict[int, Connection] = {}
        self.pipes: dict[int, Exec] = {}
        self.stdins: dict[int, Exec] = {}
        self.children = False
        self.next_watch = 0.0
        self.epoll = select.epoll()
        self.listener = _socket.socket(fileno=int(config["listen_fd"]))
        self.listener.setblocking(False)
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.epoll.register(self.wake_read, select.EPOLLIN)
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        self.ops: dict[str, Callable[[Connection, dict[str, Any], bytes], Steps]] = {
            "ping": self.op_ping,
            "renew": self.op_renew,
            "run": self.op_run,
            "poll": self.op_poll,
            "kill": self.op_kill,
            "read": self.op_read,
            "write": self.op_write,
            "list": self.op_list,
            "search": self.op_search,
            "scan": self.op_scan,
            "mark": self.op_mark,
            "blobs": self.op_blobs,
            "tree": self.op_tree,
        }

    def serve(self) -> None:
        while True:
            now = time.monotonic()
            if now >= self.lease_end:
                return
            wait = 0.0 if self.ready else min(self.next_deadline(), self.lease_end) - now
            for fd, events in self.epoll.poll(max(0.0, min(wait, 3600.0))):
                self.handle(fd, events)
            self.timers(time.monotonic())
            budget = time.monotonic() + 0.02
            for _ in range(len(self.ready)):
                task = self.ready.popleft()
                task.queued = False
                self.step(task, None)
                if time.monotonic() > budget:
                    break

    def handle(self, fd: int, events: int) -> None:
        if fd == self.wake_read:
            os.read(fd, 4096)
            self.reap()
        elif fd in self.pipes:
            self.read_pipe(fd)
        elif fd in self.connections:
            connection = self.connections[fd]
            if events & select.EPOLLOUT:
                self.flush(connection)
            if fd in self.connections and events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self.receive(connection)
        elif fd in self.stdins:
            self.feed(self.stdins[fd])
        elif fd == self.listener.fileno():
            self.accept()

    def next_deadline(self) -> float:
        times = [task.wait for task in self.sleeping if isinstance(task.wait, float)]
        times += [running.deadline for running in self.by_pid.values()]
        times += [
            draining.exited_at + DRAIN_S
            for draining in self.pipes.values()
            if draining.exited_at is not None and not draining.finished and not draining.killing
        ]
        if self.children:
            times.append(self.next_watch)
        return min(times, default=float("inf"))

    def timers(self, now: float) -> None:
        for task in [task for task in self.sleeping if isinstance(task.wait, float) and task.wait <= now]:
            self.wake(task)
        for running in list(self.by_pid.values()):
            if now >= running.deadline and not running.killing:
                running.timed_out = True
                self.end(running)
        for draining in list(self.pipes.values()):
            if draining.exited_at is not None and now >= draining.exited_at + DRAIN_S:
                self.finish(draining)
        if self.children and now >= self.next_watch:
            self.next_watch = now + WATCH_S
            self.watch_memory()
            self.watch_pids()

    # tasks and connections

    def start(self, gen: Steps, connection: Connection | None = None) -> Task:
        task = Task(gen, connection)
        if connection is not None:
            connection.task = task
        self.queue(task)
        return task

    def queue(self, task: Task) -> None:
        if not task.queued:
            task.queued = True
            self.ready.append(task)

    def wake(self, task: Task) -> None:
        if task.wait not in {"frame", "drain"}:
            self.sleeping.discard(task)
            self.queue(task)

    def step(self, task: Task, value: Any) -> None:
        """Let a task go on, and see what it waits for next."""
        connection = task.connection
        if connection is not None and connection.task is not task:
            return  # the client has gone
        try:
            task.wait = task.gen.send(value)
            while task.wait == "frame" and connection is not None and connection.frames:
                task.wait = task.gen.send(connection.frames.popleft())
        except StopIteration:
            self.done(task)
        except OpError as error:
            if connection is not None:
                connection.send({"error": error.code, "message": str(error), "details": error.details})
            self.done(task)
        except Exception as error:  # noqa: BLE001  one broken request must not end the sandbox
            log(f"{type(error).__name__}: {error}")
            if connection is not None:
                connection.send({"error": "internal", "message": f"{type(error).__name__}: {error}"})
            self.done(task)
        else:
            if connection is not None and task.wait != "frame" and len(connection.out) > HIGH_WATER:
                task.wait = "drain"  # a slow reader waits for itself only
            elif task.wait is None:
                self.queue(task)
            elif isinstance(task.wait, float):
                self.sleeping.add(task)
        if connection is not None and connection.fd in self.connections:
            self.flush(connection)

    def done(self, task: Task) -> None:
        self.sleeping.discard(task)
        if task.connection is not None and task.connection.task is task:
            task.connection.task = None
            self.dispatch(task.connection)

    def accept(self) -> None:
        while True:
            if len(self.connections) >= MAX_CONNECTIONS:
                self.epoll.modify(self.listener.fileno(), 0)  # the others wait in the backlog
                return
            try:
                fd, _ = self.listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001  socket.py takes 10 ms to import
            except OSError:
                return
            sock = _socket.socket(fileno=fd)
            sock.setblocking(False)
            connection = Connection(sock)
            self.connections[fd] = connection
            connection.mask = select.EPOLLIN
            self.epoll.register(fd, connection.mask)

    def receive(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(connection)
            return
        connection.inbox += data
        while len(connection.inbox) >= 8:
            header_size, payload_size = struct.unpack_from(">II", connection.inbox)
            if header_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
                self.drop(connection)
                return
            if len(connection.inbox) < 8 + header_size + payload_size:
                break
            try:
                header = loads(connection.inbox[8 : 8 + header_size])
            except ValueError:
                header = None
            if not isinstance(header, dict):
                self.drop(connection)
                return
            payload = bytes(connection.inbox[8 + header_size : 8 + header_size + payload_size])
            del connection.inbox[: 8 + header_size + payload_size]
            connection.frames.append((header, payload))
        self.dispatch(connection)

    def dispatch(self, connection: Connection) -> None:
        task = connection.task
        if task is not None and task.wait == "frame" and connection.frames and not task.queued:
            self.step(task, connection.frames.popleft())
        elif task is None and connection.frames:
            header, payload = connection.frames.popleft()
            operation = self.ops.get(str(header.get("op")))
            if header.get("token") != self.token:
                connection.send({"error": "unauthorized", "message": "wrong token"})
                self.flush(connection)
            elif operation is None:
                connection.send({"error": "unknown_op", "message": f"unknown operation {header.get('op')!r}"})
                self.flush(connection)
            else:
                fresh = Task(operation(connection, header, payload), connection)
                connection.task = fresh
                self.step(fresh, None)
        if connection.fd in self.connections:
            self.interest(connection)

    def interest(self, connection: Connection) -> None:
        mask = 0 if len(connection.frames) > 8 else select.EPOLLIN
        if connection.out:
            mask |= select.EPOLLOUT
        if mask != connection.mask:
            connection.mask = mask
            self.epoll.modify(connection.fd, mask)

    def flush(self, connection: Connection) -> None:
        try:
            while connection.out:
                sent = connection.sock.send(connection.out[:CHUNK])
                del connection.out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.drop(connection)
            return
        self.interest(connection)
        task = connection.task
        if len(connection.out) <= HIGH_WATER // 2 and task is not None and task.wait == "drain":
            self.queue(task)

    def drop(self, connection: Connection) -> None:
        if self.connections.pop(connection.fd, None) is None:
            return
        self.epoll.unregister(connection.fd)
        connection.sock.close()
        if len(self.connections) == MAX_CONNECTIONS - 1:
            self.epoll.modify(self.listener.fileno(), select.EPOLLIN)
        task, connection.task = connection.task, None
        if task is not None:
            self.sleeping.discard(task)
            for running in (*self.by_pid.values(), *self.pipes.values()):
                running.watchers.discard(task)
            task.gen.close()

    # commands

    def spawn(self, command: Exec, body: Callable[[], None], stdin: bytes) -> None:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        stdin_read = stdin_write = -1
        if stdin:
            stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
        else:
            stdin_read = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError as error:
            for fd in (read_end, write_end, stdin_read, stdin_write):
                if fd >= 0:
                    os.close(fd)
            raise OpError("process_limit", f"no process can be started: {error.strerror}") from None
        if pid == 0:
            self.become(body, stdin_read, write_end)
        os.close(write_end)
        os.close(stdin_read)
        os.set_blocking(read_end, False)
        command.pid = pid
        command.pipe = read_end
        try:
            command.start_ticks = Process(pid).started
        except (OSError, IndexError):
            command.start_ticks = 0
        self.by_pid[pid] = command
        self.pipes[read_end] = command
        self.epoll.register(read_end, select.EPOLLIN)
        self.children = True
        if stdin:
            os.set_blocking(stdin_write, False)
            command.stdin, command.stdin_fd = memoryview(stdin), stdin_write
            self.stdins[stdin_write] = command
            self.epoll.register(stdin_write, select.EPOLLOUT)

    def become(self, body: Callable[[], None], stdin: int, output: int) -> None:
        """In the child: nothing of the agent is left open, then the body takes over. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            os.dup2(stdin, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.closerange(3, 65536)
            # Only now may others look: a process must be dumpable to be allowed to write its own score.
            libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
            try:
                _write("/proc/self/oom_score_adj", "500")
            except OSError:
                pass
            os.setpriority(os.PRIO_PROCESS, 0, int(self.config.get("command_nice", 0)))
            import resource

            for name, limit in self.config["rlimits"].items():
                resource.setrlimit(getattr(resource, name), (limit, limit))
            body()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  a child must never return into the agent's loop
            os.write(2, f"{error}\n".encode("utf-8", "replace"))
            os._exit(126)

    def read_pipe(self, fd: int) -> None:
        command = self.pipes[fd]
        try:
            data = os.read(fd, 64 * 1024)
        except BlockingIOError:
            return
        if not data:
            self.epoll.unregister(fd)
            os.close(fd)
            del self.pipes[fd]
            command.pipe = -1
            if command.exited_at is not None:
                self.finish(command)
            return
        if command.finished:
            return  # somebody still holds the other end; it must not get SIGPIPE for that
        command.append(data)
        for task in command.watchers:
            self.wake(task)

    def feed(self, command: Exec) -> None:
        try:
            sent = os.write(command.stdin_fd, command.stdin[: 64 * 1024])
            command.stdin = command.stdin[sent:]
            if command.stdin:
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.epoll.unregister(command.stdin_fd)
        del self.stdins[command.stdin_fd]
        os.close(command.stdin_fd)
        command.stdin_fd, command.stdin = -1, memoryview(b"")

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.children = False
                return
            if pid == 0:
                return
            command = self.by_pid.pop(pid, None)
            if command is None:
                continue
            if os.WIFSIGNALED(status):
                command.signal = os.WTERMSIG(status)
            else:
                command.exit_code = os.WEXITSTATUS(status)
            command.exited_at = time.monotonic()
            if command.stdin_fd >= 0:
                command.stdin = memoryview(b"")
                self.feed(command)
            if command.pipe < 0:
                self.finish(command)

    def finish(self, command: Exec) -> None:
        if command.finished or command.exited_at is None or command.killing:
            return
        if command.end_leftovers:
            command.end_leftovers = False
            if self.family(command):
                command.killing = True
                self.tidied.add(command)
                self.start(self.end_leftovers(command))
                return
        command.finished = True
        command.disk_full = disk_is_full()
        command.ended = command.exited_at
        command.oom = command.oom or self.oom_kills() > command.oom_mark
        self.finished.append(command)
        self.kept += len(command.head) + len(command.tail)
        while self.kept > KEPT_OUTPUT and len(self.finished) > 1:
            self.kept -= self.finished.popleft().forget_output()
        for task in command.watchers:
            self.wake(task)
        command.watchers.clear()

    def family(self, command: Exec) -> list[int]:
        """The command's process and all that came from it, also through ``setsid`` and double forks.

        A process belongs by its ancestors, its session, or the environment it was started with. An orphan that tells
        nothing (it gave up its environment) belongs to any command that it is younger than.
        """
        table = processes()
        members = {pid for pid, process in table.items() if command.pid in (pid, process.session)}
        orphans = []
        for pid, process in table.items():
            if pid not in members:
                owner = exec_id_of(pid)
                if owner == command.id:
                    members.add(pid)
                elif owner is None and process.parent == 1 and process.started >= command.start_ticks:
                    orphans.append(pid)
        others = {other.pid for other in self.by_pid.values()}
        members.update(pid for pid in orphans if pid not in others)
        while True:
            more = {pid for pid, process in table.items() if pid not in members and process.parent in members}
            if not more:
                return sorted(members)
            members |= more

    def end(self, command: Exec) -> None:
        if command.finished and not self.family(command):
            return
        if not command.killing:
            command.killing = True
            command.deadline = float("inf")
            self.start(self.end_family(command))

    def end_leftovers(self, command: Exec) -> Steps:
        """End what a command left running, once it had a moment to end by itself: it may be writing a file."""
        patience = time.monotonic() + LEFTOVER_S
        members = self.family(command)
        while members and time.monotonic() < patience:
            yield time.monotonic() + 0.02
            members = self.family(command)
        command.leftovers = len(members)
        yield from self.end_family(command)
        self.tidied.discard(command)

    def end_family(self, command: Exec) -> Steps:
        """SIGTERM, grace, then stop everything before killing it, so that nothing can fork away meanwhile."""
        members = self.family(command)
        for pid in members:
            send_signal(pid, signal.SIGTERM)
            send_signal(pid, signal.SIGCONT)
        patience = time.monotonic() + GRACE_S
        while members and time.monotonic() < patience:
            yield time.monotonic() + 0.02
            members = self.family(command)
        for _ in range(50):
            if not members:
                break
            stopped: set[int] = set()
            while fresh := set(members) - stopped:
                for pid in fresh:
                    send_signal(pid, signal.SIGSTOP)
                stopped |= fresh
                if len(stopped) > 100_000:
                    break
                yield None
                members = self.family(command)
            for pid in stopped:
                send_signal(pid, signal.SIGKILL)
            yield time.monotonic() + 0.005
            members = self.family(command)
        if members:
            send_signal(-1, signal.SIGKILL)  # atomic in the kernel, where chasing was not enough
        command.killing = False
        self.reap()
        if command.exited_at is None:
            yield time.monotonic() + 0.05
            self.reap()
        if command.exited_at is None:
            command.exited_at, command.signal = time.monotonic(), int(signal.SIGKILL)
        self.by_pid.pop(command.pid, None)
        self.finish(command)

    def oom_kills(self) -> int:
        """How often the kernel killed for memory in this sandbox's control group so far."""
        fd = self.config.get("oom_fd")
        if fd is None:
            return 0
        for line in os.pread(fd, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def watch_memory(self) -> None:
        """Kill the largest process while all together hold more anonymous memory than allowed.

        The control group, where there is one, also counts the files of the sandbox; this one tells the two apart.
        """
        fd, name = self.config.get("stat_fd"), str(self.config.get("stat_key", "")).encode()
        if fd is not None:
            for line in os.pread(fd, 16384, 0).splitlines():
                if line.startswith(name + b" ") and int(line.split()[1]) <= self.memory_bytes:
                    return
        sizes: dict[int, int] = {}
        for measure in (resident_bytes, proportional_bytes):
            sizes.clear()
            for pid in processes():
                try:
                    sizes[pid] = measure(pid)
                except OSError:
                    continue
            if sum(sizes.values()) <= self.memory_bytes:
                return
        while sizes and sum(sizes.values()) > self.memory_bytes:
            largest = max(sizes, key=lambda pid: sizes[pid])
            send_signal(largest, signal.SIGKILL)
            del sizes[largest]
            for command in self.by_pid.values():
                command.oom = True

    def watch_pids(self) -> None:
        """Note with which commands the sandbox had all the processes and threads that it may have."""
        if not self.by_pid and not self.tidied:
            return
        fd = self.config.get("pids_fd")
        if fd is not None and int(os.pread(fd, 64, 0)) < self.pids:
            return  # the group counts those outside of the sandbox, too, so that this alone says nothing
        if 1 + sum(threads_of(pid) for pid in processes()) >= self.pids:  # this one counts, too
            for command in (*self.by_pid.values(), *self.tidied):
                command.pids_hit = True

    def require(self, exec_id: str) -> Exec:
        command = self.execs.get(exec_id)
        if command is None:
            raise OpError("exec_not_found", f"no command with id {exec_id} was started in this sandbox")
        return command

    def send_result(self, connection: Connection, command: Exec, *, reattached: bool) -> Steps:
        head, tail = command.kept()
        for part in (head, tail):
            for start in range(0, len(part), CHUNK):
                connection.send({"out": 1}, part[start : start + CHUNK])
                yield None
        connection.send(
            {
                "end": 1,
                "exit_code": command.exit_code if command.finished else None,
                "signal": command.signal if command.finished else None,
                "timed_out": command.timed_out,
                "oom": command.oom,
                "pids": command.pids_hit,
                "disk": command.disk_full,
                "leftovers": command.leftovers,
                "head": len(head),
                "tail": len(tail),
                "total": command.total,
                "duration": (command.ended if command.finished else time.monotonic()) - command.started,
                "running": not command.finished,
                "reattached": reattached,
            }
        )

    def op_ping(self, connection: Connection, _header: dict[str, Any], _payload: bytes) -> Steps:
        connection.send({"end": 1, "running": len(self.by_pid), "lease_s": self.lease_end - time.monotonic()})
        return
        yield

    def op_renew(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        self.lease_end = time.monotonic() + float(header["lease_s"])
        connection.send({"end": 1})
        return
        yield

    def op_run(self, connection: Connection, header: dict[str, Any], payload: bytes) -> Steps:
        stdin = bytearray(payload)
        more = header.get("more")
        while more:
            part, data = yield "frame"
            stdin += data
            more = part.get("more")
            if len(stdin) > MAX_STDIN:
                raise OpError("invalid", f"stdin is longer than {MAX_STDIN} bytes")
        exec_id = str(header["exec_id"])
        command = self.execs.get(exec_id)
        reattached = command is not None
        if command is None:
            command = self.start_command(exec_id, header, bytes(stdin))
        if header.get("background"):
            yield from self.send_result(connection, command, reattached=reattached)
            return
        task, cursor = connection.task, 0
        if task is None:
            return
        while True:
            if header.get("follow"):
                while True:
                    offset, data = command.piece(cursor)
                    if not data:
                        break
                    connection.send({"at": offset}, data)
                    cursor = offset + len(data)
                    if len(connection.out) > HIGH_WATER:
                        yield None
            if command.finished:
                break
            command.watchers.add(task)
            yield "wake"
        yield from self.send_result(connection, command, reattached=reattached)

    def start_command(self, exec_id: str, header: dict[str, Any], stdin: bytes) -> Exec:
        if len(self.by_pid) >= MAX_RUNNING:
            raise OpError("too_many_commands", f"{MAX_RUNNING} commands are running in this sandbox already")
        cwd, wanted = str(header["cwd"]), header["command"]
        if not os.path.isdir(cwd):
            raise OpError("file_not_found", f"the working directory {cwd} does not exist")
        own = isinstance(wanted, list)  # a program of the platform's: no shell, nothing of the task's environment
        env = {**(self.basic_env if own else self.env), **header["env"], MARKER: exec_id, "PWD": cwd}
        program = wanted[0] if own else self.shell
        argv = wanted if own else [program.rpartition("/")[2], "-c", wanted]

        def body() -> None:
            os.chdir(cwd)
            os.execvpe(program, argv, env)  # noqa: S606  it is one, or none is wanted

        command = Exec(exec_id, int(header["output_limit"]))
        command.oom_mark = self.oom_kills()
        self.spawn(command, body, stdin)
        self.execs[exec_id] = command
        if not header.get("background"):
            command.deadline = command.started + float(header["limit_s"])
            command.end_leftovers = bool(header.get("end_leftovers"))
        return command

    def op_poll(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        yield from self.send_result(connection, self.require(str(header["exec_id"])), reattached=True)

    def op_kill(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        command = self.require(str(header["exec_id"]))
        self.end(command)
        while command.killing:
            yield time.monotonic() + 0.01
        connection.send({"end": 1})

    # files

    def op_read(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        path = str(header["path"])
        try:
            fd = self.files.open_file(path)
        except OSError as error:
            raise file_error(error, path) from None
        try:
            start, length, size = int(header["start"]), header.get("length"), os.fstat(fd).st_size
            left = max(0, size - start) if length is None else int(length)
            if left > MAX_READ:
                raise OpError(
                    "file_too_large",
                    f"{path}: {left} bytes asked for, at most {MAX_READ} can be read at once",
                    size=size,
                )
            while left > 0 and (data := os.pread(fd, min(CHUNK, left), start)):
                connection.send({"data": 1}, data)
                start, left = start + len(data), left - len(data)
                yield None
            connection.send({"end": 1, "size": size})
        finally:
            os.close(fd)

    def op_write(self, connection: Connection, header: dict[str, Any], payload: bytes) -> Steps:
        path, mode = str(header["path"]), header.get("mode")
        temporary = ""
        parent = fd = -1
        try:
            root, parts = self.files.resolve(path)
            if not parts:
                raise OpError("file_is_a_directory", f"{path}: is a directory")
            parent = self.files.directory(root, parts[:-1], create=True)
            try:
                there = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                mode = 0o644 if mode is None else int(mode)
            else:
                if not stat.S_ISREG(there.st_mode):
                    kind = "is_a_directory" if stat.S_ISDIR(there.st_mode) else "not_a_file"
                    raise OpError(f"file_{kind}", f"{path}: not a regular file")
                mode = stat.S_IMODE(there.st_mode) if mode is None else int(mode)
            temporary = f".write-{os.urandom(6).hex()}"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
            more, data = header.get("more"), payload
            while True:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if not more:
                    break
                part, data = yield "frame"
                more = part.get("more")
            os.fchmod(fd, mode & 0o777)
            os.rename(temporary, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
            temporary = ""
        except OSError as error:
            raise file_error(error, path) from None
        finally:
            if temporary and parent >= 0:
                try:
                    os.unlink(temporary, dir_fd=parent)
                except OSError:
                    pass
            for descriptor in (fd, parent):
                if descriptor >= 0:
                    os.close(descriptor)
        connection.send({"end": 1})

    def op_list(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        path = str(header["path"])
        root, parts = self.files.resolve(path)
        start = "/".join([root, *parts])
        limit, found = int(header["limit"]), []
        level = [start]
        try:
            for _ in range(int(header["depth"])):
                below = []
                for directory in level:
                    try:
                        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
                    except OSError:
                        if directory == start:
                            raise
                        continue
                    for entry in entries:
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue
                        found.append(
                            [
                                entry.path,
                                self.kind(status.st_mode),
                                status.st_size,
                                status.st_mode & 0o7777,
                                status.st_mtime,
                            ]
                        )
                        if stat.S_ISDIR(status.st_mode):
                            below.append(entry.path)
                        if len(found) >= limit:
                            below, level = [], []
                            break
                    yield None
                    if len(found) >= limit:
                        break
                level = below
        except OSError as error:
            raise file_error(error, path) from None
        found.sort(key=lambda item: str(item[0]))
        yield from self.send_list(connection, found)
        connection.send({"end": 1})

    @staticmethod
    def kind(mode: int) -> str:
        if stat.S_ISREG(mode):
            return "file"
        if stat.S_ISDIR(mode):
            return "directory"
        return "symlink" if stat.S_ISLNK(mode) else "other"

    @staticmethod
    def send_list(connection: Connection, items: list[Any], name: str = "items") -> Steps:
        batch: list[Any] = []
        size = 0
        for item in items:
            batch.append(item)
            size += 120 + 6 * len(str(item[0]))  # an escaped byte takes six characters
            if size > CHUNK:
                connection.send({name: len(batch)}, dumps(batch).encode())
                batch, size = [], 0
                yield None
        if batch:
            connection.send({name: len(batch)}, dumps(batch).encode())

    def op_search(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        pattern, glob, path = str(header["pattern"]), header.get("glob"), str(header["path"])
        root, parts = self.files.resolve(path)
        start = "/".join([root, *parts])
        if not os.path.exists(start):
            raise OpError("file_not_found", f"{path}: no such file or directory")
        import re

        try:
            re.compile(pattern)
        except re.error as error:
            raise OpError("search_refused", f"not a regular expression: {error}") from None
        self.internal += 1
        command = Exec(f"search-{self.internal}", 4 * MAX_PAYLOAD)
        command.deadline = command.started + float(header["limit_s"])
        self.spawn(command, lambda: search_files(start, pattern, glob, int(header["limit"])), b"")
        task = connection.task
        try:
            while not command.finished:
                if task is not None:
                    command.watchers.add(task)
                yield "wake"
        finally:
            if not command.finished:
                send_signal(command.pid, signal.SIGKILL)
        if command.timed_out:
            raise OpError("search_refused", f"the search took longer than {header['limit_s']} s and was stopped")
        hits = []
        for line in bytes(command.head + command.tail).splitlines():
            try:
                hits.append(loads(line))
            except ValueError:
                break
        yield from self.send_list(connection, hits)
        connection.send({"end": 1})

    # snapshots

    def op_scan(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        tree = self.tree
        complete = header.get("base") is None or header["base"] != tree.digest
        old, old_keys = tree.entries, tree.keys
        max_files, max_bytes = int(header["max_files"]), int(header["max_bytes"])
        entries: dict[str, Entry] = {}
        keys: dict[str, Key] = {}
        changed: list[str] = []
        skipped: list[list[str]] = []
        carried: dict[str, bytes] = {}
        room = int(header.get("carried_bytes", 0))
        mapped = tree.mapped_inodes()
        total, slice_end = 0, time.monotonic() + 0.01
        stack = [(f"/{root}", root) for root in ROOTS]
        while stack:
            directory, relative = stack.pop()
            try:
                children = list_directory(directory)
            except FileNotFoundError:
                continue
            except OSError:
                skipped.append([relative])
                continue
            for child in children:
                path = f"{relative}/{child.name}"
                try:
                    status = child.stat(follow_symlinks=False)
                    mode = status.st_mode
                    before = old.get(path)
                    if stat.S_ISREG(mode):
                        key = key_of(status)
                        if before is not None and old_keys.get(path) == key and key[3] not in mapped:
                            keys[path] = key
                            entry = before if before[1] == mode & 0o777 else (*before[:1], mode & 0o777, *before[2:])
                        else:
                            sum_, size, sure, data = yield from self.hash_file(child.path, mapped)
                            entry = ("f", mode & 0o777, size, sum_)
                            if 0 < len(data) <= room and len(carried) < MAX_CARRIED_FILES and entry != before:
                                carried[path] = data
                                room -= len(data)
                            if sure is not None:
                                keys[path] = sure
                            slice_end = time.monotonic() + 0.01
                        total += entry[2]
                    elif stat.S_ISDIR(mode):
                        entry = ("d", mode & 0o777, 0, "")
                        stack.append((child.path, path))
                    elif stat.S_ISLNK(mode):
                        entry = ("l", 0o777, 0, os.readlink(child.path))
                    else:
                        skipped.append([path])
                        continue
                except FileNotFoundError:
                    continue
                except OSError:
                    skipped.append([path])
                    continue
                entries[path] = entry
                if entry is not before and entry != before:
                    changed.append(path)
                if len(entries) > max_files:
                    raise OpError(
                        "snapshot_refused", f"the workspace holds more than {max_files} files and directories"
                    )
                if total > max_bytes:
                    raise OpError("snapshot_refused", f"the files of the workspace hold more than {max_bytes} bytes")
            if time.monotonic() > slice_end:
                yield None
                slice_end = time.monotonic() + 0.01
        tree.counter += 1
        scan_id = f"scan-{tree.counter}"
        if complete:
            changed, removed = list(entries), []
        else:
            removed = [[path] for path in old if path not in entries] if len(entries) - len(changed) < len(old) else []
        tree.pending = (scan_id, entries, keys)
        yield from self.send_list(connection, [[path, *entries[path]] for path in changed], "entries")
        yield from self.send_list(connection, removed, "removed")
        yield from self.send_list(connection, skipped[:100], "skipped")
        if carried:
            parts = [[index, len(carried[path])] for index, path in enumerate(changed) if path in carried]
            connection.send({"carried": parts}, b"".join(carried[path] for path in changed if path in carried))
        connection.send({"end": 1, "scan_id": scan_id, "complete": complete})

    def hash_file(self, path: str, mapped: set[int]) -> Generator[Wait, Any, tuple[str, int, Key | None, bytes]]:
        """SHA-256 and size of what was read, the key under which that can be trusted, if it can, and the bytes of a small file."""
        seen_ns = time.time_ns()
        fd = open_readable(path)
        try:
            key = key_of(os.fstat(fd))
            digest, size, first = sha256(), 0, b""
            while size < key[0] and (data := os.read(fd, min(CHUNK, key[0] - size))):
                digest.update(data)
                first = first or data
                size += len(data)
                if len(data) == CHUNK:
                    yield None
            sure = key == key_of(os.fstat(fd)) and key[3] not in mapped and self.tree.certain(key, seen_ns)
            return digest.hexdigest(), size, key if sure else None, first if size == len(first) else b""
        finally:
            os.close(fd)

    def op_mark(self, connection: Connection, header: dict[str, Any], payload: bytes) -> Steps:
        if self.tree.pending is not None and self.tree.pending[0] == header["scan_id"]:
            _, self.tree.entries, self.tree.keys = self.tree.pending
            self.tree.pending = None
            self.tree.digest = str(header["digest"])
            for path, entry in loads(payload or b"{}").items():
                self.tree.keys.pop(path, None)
                if entry is None:
                    self.tree.entries.pop(path, None)
                else:
                    self.tree.entries[path] = (entry[0], entry[1], entry[2], entry[3])
        connection.send({"end": 1})
        return
        yield

    def op_blobs(self, connection: Connection, _header: dict[str, Any], payload: bytes) -> Steps:
        parts: list[list[int]] = []
        buffer = bytearray()
        for index, path in enumerate(loads(payload)):
            try:
                fd = open_readable("/" + self.inside(path))
            except OSError:
                parts.append([index, 0, 2])
                continue
            try:
                status = os.fstat(fd)
                left = status.st_size  # a file that grows meanwhile must not be read for ever
                if not stat.S_ISREG(status.st_mode):
                    parts.append([index, 0, 2])
                    continue
                while True:
                    data = os.read(fd, min(CHUNK, left))
                    left -= len(data)
                    parts.append([index, len(data), 1 if data else 0])
                    buffer += data
                    if len(buffer) >= CHUNK or len(parts) > 1000:
                        connection.send({"parts": parts}, bytes(buffer))
                        parts, buffer = [], bytearray()
                        yield None
                    if not data:
                        break
            finally:
                os.close(fd)
        if parts:
            connection.send({"parts": parts}, bytes(buffer))
        connection.send({"end": 1})

    @staticmethod
    def inside(path: str) -> str:
        names = path.split("/")
        if names[0] not in ROOTS or len(names) < 2 or any(name in {"", ".", ".."} or "\0" in name for name in names):
            raise OpError("file_outside", f"{path!r} is not a path of a snapshot")
        return path

    def op_tree(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """Empty the snapshot roots, then put directories, files and links there as they are told."""
        digest = header["digest"]
        entries: dict[str, Entry] = {}
        order: list[str] = []
        self.tree.digest, self.tree.entries, self.tree.keys = None, {}, {}
        output = -1
        try:
            for root in ROOTS:
                for _ in remove_below(f"/{root}"):
                    yield None
            while not header.get("done"):
                header, payload = yield "frame"
                if "entries" in header:
                    for path, kind, mode, size, content in loads(payload):
                        entries[self.inside(path)] = (kind, mode & 0o777, size, content)
                        order.append(path)
                        os.makedirs(("/" + path) if kind == "d" else ("/" + path).rpartition("/")[0], exist_ok=True)
                        if kind == "f":
                            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                            os.close(os.open("/" + path, flags, mode & 0o777))
                            os.chmod("/" + path, (mode & 0o777) | 0o200)
                position = 0
                for index, length, last in header.get("parts", ()):
                    if output < 0:
                        output = os.open("/" + order[index], os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
                    view = memoryview(payload)[position : position + length]
                    position += length
                    while view:
                        view = view[os.write(output, view) :]
                    if last:
                        os.close(output)
                        output = -1
            for path in order:
                if entries[path][0] == "l":
                    os.symlink(entries[path][3], "/" + path)
                elif entries[path][0] == "f" and not entries[path][1] & 0o200:
                    os.chmod("/" + path, entries[path][1])
            for path in sorted((path for path in order if entries[path][0] == "d"), reverse=True):
                os.chmod("/" + path, entries[path][1])
        except OSError as error:
            raise file_error(error, "the snapshot cannot be put in place") from None
        finally:
            if output >= 0:
                os.close(output)
        keys = {}
        for path, entry in entries.items():
            if entry[0] == "f" and not self.tree.tick_ns:
                try:
                    keys[path] = key_of(os.lstat("/" + path))
                except OSError:
                    continue
        self.tree.digest, self.tree.entries, self.tree.keys = str(digest), entries, keys
        connection.send({"end": 1})


logged = 0


def log(message: str) -> None:
    """To the file that the driver keeps; bounded, since commands may be able to provoke messages."""
    global logged  # noqa: PLW0603  a counter of one process
    if logged < 64 * 1024:
        logged += len(message)
        os.write(2, f"{message}\n".encode("utf-8", "replace"))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin = os.fdopen(0, "rb", closefd=False)
    config = loads(stdin.readline())
    ready = int(config["ready_fd"])
    try:
        isolate(config)
        agent = Agent(config)
    except Exception as error:  # noqa: BLE001  whatever it was, the driver is told
        os.write(ready, dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        os._exit(1)
    os.write(ready, b'{"ok":1}\n')
    if stdin.readline() != b"go\n":
        os._exit(1)  # whoever started this died before writing down that it exists
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    keep = {int(config["listen_fd"]), agent.epoll.fileno(), agent.wake_read, agent.wake_write}
    keep |= {int(config[name]) for name in ("oom_fd", "stat_fd", "pids_fd") if name in config}
    for low, high in zip([2, *sorted(keep)], [*sorted(keep), 65536], strict=True):
        if low + 1 < high:  # closerange(0, 0) closes everything
            os.closerange(low + 1, high)
    # Here and not above, where it would add to the time until a sandbox serves; each command's process finds it loaded.
    import resource  # noqa: F401

    gc.freeze()
    agent.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
