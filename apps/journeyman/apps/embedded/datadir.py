"""The data directory of an embedded stack: its lock, its version, its secrets and its ports.

lock            held (flock) by the one supervisor; holds its pid
version.json    which Journeyman wrote the directory
secrets.json    0600: passwords and keys, made at the first start
ports.json      ports in use, kept so that a restart has the same addresses
stack.json      0600: what runs, for ``journeyman status``
logs/           one file a process, bounded
postgres/ temporal/ objects/ vectors/ sandboxes/
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Final

from journeyman.apps.embedded.errors import DataDirectoryLocked, DataDirectoryUnusable
from journeyman.apps.embedded.ports import choose_port, claim, is_free

FORMAT: Final = 1
"""Of the directory's layout. A change that an older Journeyman cannot read raises it."""

_SECRETS: Final[dict[str, Callable[[], str]]] = {
    "postgres_superuser": lambda: secrets.token_urlsafe(32),
    "postgres": lambda: secrets.token_urlsafe(32),
    "s3_access_key": lambda: "J" + secrets.token_hex(10).upper(),
    "s3_secret_key": lambda: secrets.token_urlsafe(32),
    "objects_signing": lambda: secrets.token_urlsafe(32),
    "vectors": lambda: secrets.token_urlsafe(32),
    "internal": lambda: secrets.token_urlsafe(32),
}


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: ``1.2.0rc1`` → (1, 2, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


class DataDirectory:
    """One data directory. Everything but :meth:`lock` may be used by processes that only look."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self._lock_fd: int | None = None
        self._claims: dict[int, socket.socket] = {}

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def state_file(self) -> Path:
        return self.root / "stack.json"

    def create(self) -> None:
        """Make the directory, readable for its owner only. Raises :class:`DataDirectoryUnusable`."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            stat = self.root.stat()
            if stat.st_uid == os.geteuid() and stat.st_mode & 0o077:
                self.root.chmod(0o700)
        except OSError as error:
            raise DataDirectoryUnusable(
                f"The data directory {self.root} cannot be made or written ({error.strerror}). "
                "Choose another with --data-dir or JOURNEYMAN_DATA_DIR."
            ) from error
        if stat.st_uid != os.geteuid():
            raise DataDirectoryUnusable(
                f"The data directory {self.root} belongs to another user (uid {stat.st_uid}). "
                "Run as that user, or choose another with --data-dir."
            )

    def lock(self) -> None:
        """Become the one supervisor of this directory. Raises :class:`DataDirectoryLocked` with the holder's pid."""
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            holder = self.holder()
            raise DataDirectoryLocked(
                f"A Journeyman already runs on {self.root} (pid {holder or 'unknown'}). "
                "Use it, stop it with `journeyman down`, or choose another directory with --data-dir.",
                pid=holder,
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def unlock(self) -> None:
        while self._claims:
            self._claims.popitem()[1].close()
        if self._lock_fd is not None:
            os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = None

    def holder(self) -> int | None:
        """The pid of the supervisor that holds the lock now; None while nobody does."""
        try:
            fd = os.open(self.root / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            return int(text) if text.isdecimal() else None
        else:
            return None
        finally:
            os.close(fd)

    def check_version(self) -> None:
        """Refuse a directory that a newer Journeyman wrote; note this version otherwise."""
        file = self.root / "version.json"
        own = installed_version("journeyman")
        found = self._read(file)
        if found is not None:
            format_, written_by = found.get("format", 0), str(found.get("journeyman", "0"))
            if format_ > FORMAT or _numbers(written_by) > _numbers(own):
                raise DataDirectoryUnusable(
                    f"The data directory {self.root} was written by Journeyman {written_by}; this is {own}, which could "
                    "damage it. Install that version or a newer one, or choose another directory with --data-dir.",
                    written_by=written_by,
                    installed=own,
                )
        elif any((self.root / name).exists() for name in ("postgres", "temporal", "objects")):
            raise DataDirectoryUnusable(
                f"{file} is missing or damaged although {self.root} holds data, so nobody can tell which version wrote it. "
                f'If it was this one, restore the file with the content {{"format": {FORMAT}, "journeyman": "{own}"}}.'
            )
        self.write("version.json", {"format": FORMAT, "journeyman": own})

    def check_space(self, minimum_mb: int) -> None:
        """Refuse to start on a disk that is nearly full: databases do not end well there."""
        free = shutil.disk_usage(self.root).free // 1024**2
        if free < minimum_mb:
            raise DataDirectoryUnusable(
                f"Only {free} MB are free on the disk of {self.root}; Journeyman wants at least {minimum_mb} MB. "
                "Free some space, or choose a directory on another disk with --data-dir.",
                free_mb=free,
            )

    def secrets(self) -> dict[str, str]:
        """The stack's own secrets by name, made at the first call."""
        known = self._read(self.root / "secrets.json") or {}
        missing = {name: make() for name, make in _SECRETS.items() if name not in known}
        if missing:
            known |= missing
            self.write("secrets.json", known)
        return known

    def ports(self, names: Iterable[str], preferred: dict[str, int]) -> dict[str, int]:
        """A free port for each name: the one of the last time, else the preferred one, else any. All differ.

        They are claimed until :meth:`unlock`, so that two stacks that start at once do not choose the same.
        """
        remembered = self._read(self.root / "ports.json") or {}
        chosen: dict[str, int] = {}
        taken = {port for port in remembered.values() if isinstance(port, int)}
        for name in names:
            candidates = [remembered.get(name), preferred.get(name)]
            usable = (port for port in candidates if port and port not in chosen.values() and self.claim_port(port))
            chosen[name] = next(usable, 0) or self._claim_any(taken | set(chosen.values()))
        self.write("ports.json", remembered | chosen)
        return chosen

    def claim_port(self, port: int) -> bool:
        """Whether the port is free, and this stack's until :meth:`unlock`."""
        if port in self._claims:
            return is_free(port)
        held = claim(port)
        if held is None:
            return False
        self._claims[port] = held
        return True

    def _claim_any(self, avoid: set[int]) -> int:
        while not self.claim_port(port := choose_port(avoid)):
            avoid.add(port)
        return port

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace a JSON file at once, readable for the owner only."""
        partial = self.root / f".{name}.{os.getpid()}"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(content, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.root / name)

    def read_state(self) -> dict[str, Any] | None:
        """What ``stack.json`` says, or None when there is none."""
        return self._read(self.state_file)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file that :meth:`write` wrote, or None when there is none."""
        return self._read(self.root / name)

    @staticmethod
    def _read(file: Path) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            content = json.loads(file.read_text())
            if isinstance(content, dict):
                return content
        return None
