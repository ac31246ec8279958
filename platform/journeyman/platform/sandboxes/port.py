"""Sandboxes: the port. A sandbox is a lease on an isolated machine; it is disposable, and nothing that matters lives only there.

Drivers: :class:`journeyman.platform.sandboxes.local.LocalSandboxDriver`. Every driver passes
``tests/platform/sandboxes/test_conformance.py``.

Paths are absolute paths inside the sandbox, as ``str`` with ``surrogateescape`` for names that are not UTF-8. Only
``/workspace``, ``/artifacts``, ``/tmp`` and the home directory can be reached by file operations.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

MIB = 1024 * 1024
GIB = 1024 * MIB

WORKSPACE = "/workspace"
HOME = "/home/agent"
SNAPSHOT_ROOTS = ("workspace", "artifacts")
"""Top-level directories that a snapshot holds; a snapshot's paths begin with one of them, without a leading slash."""

EGRESS_SOCKET = "/run/egress.sock"
"""Where a sandbox with a way out finds it."""

OutputCallback = Callable[[int, bytes], None]
"""Called with the offset of the bytes in the command's whole output, and the bytes (at most 32 KiB)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use, all its processes together unless said otherwise."""

    memory_bytes: int = 2 * GIB
    """Memory of the processes. Files have a limit of their own."""
    cpus: float = 1.0
    pids: int = 256
    """Processes and threads."""
    disk_bytes: int = 2 * GIB
    """All writable directories together."""
    open_files: int = 1024
    """Per process."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to lease. A sandbox has no network but its own loopback, ever.

    ``env`` is for the task's own commands; programs of the platform never get it. ``egress`` is the Unix socket of an
    egress proxy (:mod:`journeyman.platform.egress.proxy`) on the driver's machine, shown inside as ``EGRESS_SOCKET``.
    """

    sandbox_id: str
    env: Mapping[str, str] = field(default_factory=dict)
    egress: Path | None = None
    limits: Limits = field(default_factory=Limits)
    toolset: str = "python"
    lease_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command for ``bash -c`` (``sh -c`` where there is no bash), or a program of the platform's own.

    A command that is a sequence is a program with its arguments, looked up on the platform's ``PATH`` and run without a
    shell: with the sandbox's basic variables and ``env``, and nothing of the spec's ``env``.

    ``timeout_s`` bounds a foreground command; a background one runs until it is killed or the sandbox ends. With
    ``end_leftovers``, processes that a foreground command leaves behind are ended with it, a second after it.
    """

    exec_id: str
    command: str | Sequence[str]
    cwd: str = WORKSPACE
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0
    background: bool = False
    end_leftovers: bool = False
    output_limit: int = MIB
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command stands or ended. ``output`` is stdout and stderr as they came, interleaved.

    Over ``output_limit`` the middle is left out, and a line in its place says how many bytes. ``exit_code`` is ``None``
    while the command runs and when a signal ended it; ``signal`` is that signal. ``oom_killed`` tells that a process of
    the sandbox was killed for memory while this command ran, ``pids_hit`` that the sandbox had all the processes that it
    may have, ``disk_full`` that its disk was full when the command ended. ``leftovers`` is the number of processes that
    were ended because the command had left them behind. ``reattached`` tells that the command had been started by
    an earlier call with the same ``exec_id``.
    """

    exec_id: str
    exit_code: int | None
    signal: int | None
    timed_out: bool
    oom_killed: bool
    output: bytes
    total_bytes: int
    truncated: bool
    duration_s: float
    running: bool
    reattached: bool
    pids_hit: bool = False
    disk_full: bool = False
    leftovers: int = 0


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of a listing."""

    path: str
    """Absolute."""
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    """Bytes."""
    mode: int
    """Permission bits."""
    modified: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A line that matches."""

    path: str
    """Absolute."""
    line: int
    """From 1."""
    text: str
    """The line, cut at 500 characters; bytes that are not UTF-8 are replaced."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, directory or symbolic link under a snapshot root, for example ``workspace/src/a.py``."""

    path: str
    kind: Literal["file", "directory", "symlink"]
    mode: int
    """Permission bits without set-id and sticky."""
    size: int = 0
    """Bytes of a file; 0 of all else."""
    sha256: str = ""
    """Of a file's content, in hex; empty of all else."""
    target: str = ""
    """Of a symbolic link."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The state of the snapshot roots. ``complete``: ``entries`` is everything; otherwise what differs from the base."""

    scan_id: str
    complete: bool
    entries: list[TreeEntry]
    removed: list[str]
    skipped: list[str]
    """What a snapshot cannot hold (sockets, FIFOs, paths that are too long); at most 100 of them."""
    contents: dict[str, bytes] = field(default_factory=dict)
    """Of some small files among ``entries``, by path, to spare a :meth:`Sandbox.read_blobs`; as said, not as checked."""


@dataclass(frozen=True, slots=True)
class FileChunk:
    """Part of a file's content. ``last`` closes the file; ``missing`` says it vanished or changed its kind meanwhile."""

    path: str
    offset: int
    data: bytes
    last: bool
    missing: bool = False


@dataclass(frozen=True, slots=True)
class LimitEnforcement:
    """One limit, or one part of the isolation."""

    name: str
    enforced: bool
    how: str
    """By what, for example ``cgroup v2``."""
    note: str = ""
    """What is left open, for people."""


@dataclass(frozen=True, slots=True)
class EnforcementReport:
    """What this machine can hold a sandbox to."""

    driver: str
    limits: list[LimitEnforcement]
    isolation: list[LimitEnforcement]

    @property
    def unenforced(self) -> list[str]:
        """Names of limits that nothing enforces here."""
        return [limit.name for limit in self.limits if not limit.enforced]


class Sandbox(Protocol):
    """A leased sandbox. Every method raises :class:`~.errors.SandboxLost` when the sandbox is gone or does not answer."""

    @property
    def id(self) -> str:
        """The one it was leased under."""
        ...

    async def run(self, request: ExecRequest, on_output: OutputCallback | None = None) -> ExecResult:
        """Run a command, once per ``exec_id`` however often and from wherever this is called.

        A later caller joins the running command, or gets the result kept from before, with the output from its first
        byte (capped). Cancelling the call leaves the command running; :meth:`kill` ends it. At ``timeout_s`` the whole
        process tree gets SIGTERM, and SIGKILL half a second later. A background command returns at once, ``running``.
        """
        ...

    async def poll(self, exec_id: str) -> ExecResult:
        """How a command stands, with its output so far. Raises :class:`~.errors.ExecNotFound`."""
        ...

    async def kill(self, exec_id: str) -> None:
        """End a command and all its descendants. Not an error when it has ended."""
        ...

    async def read_file(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of a regular file. Without ``length`` the rest of it, at most 16 MiB, else ``too_large``."""
        ...

    async def write_file(self, path: str, data: bytes, mode: int | None = None) -> None:
        """Replace a file in one step, making its directories; keeps its mode unless one is given (0644 for new files)."""
        ...

    async def list_files(self, path: str = WORKSPACE, depth: int = 2) -> list[FileInfo]:
        """What is below a directory, to that depth, sorted; at most 5,000 entries. Links are listed, not followed."""
        ...

    async def search(self, pattern: str, path: str = WORKSPACE, glob: str | None = None) -> list[SearchHit]:
        """Lines that match a Python regular expression in text files below a path; at most 500 hits, 15 seconds.

        ``glob`` is matched against the file's name, or against its path below ``path`` when it holds a slash.
        """
        ...

    async def scan(self, base: str | None = None) -> Scan:
        """The snapshot roots; only what differs when the sandbox remembers the state with the digest ``base``."""
        ...

    def read_blobs(self, paths: Sequence[str]) -> AsyncIterator[FileChunk]:
        """Contents of files named by a scan, in that order, in chunks of at most 1 MiB."""
        ...

    async def mark(
        self, scan_id: str, digest: str, changed: Sequence[TreeEntry] = (), missing: Sequence[str] = ()
    ) -> None:
        """Let the sandbox remember a scan under a digest.

        ``changed`` are files whose content was another when it was read, ``missing`` the ones that were gone by then.
        """
        ...

    async def replace_tree(
        self, entries: Sequence[TreeEntry], contents: AsyncIterator[tuple[str, bytes]], digest: str
    ) -> None:
        """Make the snapshot roots hold exactly these entries, and remember that state under the digest.

        ``contents`` gives chunks of the files' contents in any order of files, each file's chunks in order and together.
        """
        ...

    async def renew(self, lease_s: float) -> None:
        """Let the lease end that many seconds from now."""
        ...

    async def ping(self) -> None:
        """Return when the sandbox answers."""
        ...


class SandboxDriver(Protocol):
    """Leases sandboxes. They outlive the process that leased them, until released or until the lease ends."""

    @property
    def node(self) -> str | None:
        """The machine that alone can reach its sandboxes; ``None`` when they can be reached from everywhere."""
        ...

    async def lease(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox with that id: the one that exists, or a new one.

        Raises :class:`~.errors.LimitsNotEnforced` and :class:`~.errors.SandboxUnavailable` with what to do about it.
        """
        ...

    async def connect(self, sandbox_id: str) -> Sandbox:
        """The sandbox that some process leased. Raises :class:`~.errors.SandboxLost`."""
        ...

    async def release(self, sandbox_id: str) -> None:
        """End a sandbox and everything in it. Not an error when there is none."""
        ...

    async def list_ids(self) -> list[str]:
        """Ids of the sandboxes that can be reached from here, in no order."""
        ...

    async def report(self) -> EnforcementReport:
        """What this machine can hold a sandbox to, found out by trying."""
        ...

    async def close(self) -> None:
        """Let go of this process's own resources; leased sandboxes stay."""
        ...
