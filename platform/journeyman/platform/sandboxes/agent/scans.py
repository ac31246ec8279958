"""Operations ``scan`` and ``mark``: what the snapshot roots hold, compared with the last snapshot."""

from __future__ import annotations

import os
import stat
import time

from .protocol import CHUNK, ROOTS, OpError, loads
from .tree import list_directory, open_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Final

    from .connections import Connection
    from .protocol import Steps, Wait

    Entry = tuple[str, int, int, str]
    """Kind (``f``, ``d``, ``l``), mode, size, and SHA-256 or link target."""
    Key = tuple[int, int, int, int]
    """Size, mtime, ctime, inode. ctime cannot be set by a process, so that a changed file has a changed key."""

MAX_CARRIED_FILES: Final = 1000


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


class Scans:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def scan(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """Send what differs from the snapshot ``base``, or everything when that is not the last one known here.

        ``base``: digest or ``null``; ``max_files``, ``max_bytes``: limits of the snapshot; ``carried_bytes``: of small
        changed files, whose contents come along. Frames: ``entries`` (rows ``[path, kind, mode, size, SHA-256 or link
        target]``), ``removed`` and ``skipped`` (rows ``[path]``), ``carried`` (pairs of an entry's index and a length;
        payload: contents), then ``end`` with ``scan_id`` and ``complete``. Errors: ``snapshot_refused``.
        """
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
        yield from connection.send_rows("entries", [[path, *entries[path]] for path in changed])
        yield from connection.send_rows("removed", removed)
        yield from connection.send_rows("skipped", skipped[:100])
        if carried:
            parts = [[index, len(carried[path])] for index, path in enumerate(changed) if path in carried]
            connection.send({"carried": parts}, b"".join(carried[path] for path in changed if path in carried))
        connection.send({"end": 1, "scan_id": scan_id, "complete": complete})

    def hash_file(self, path: str, mapped: set[int]) -> Generator[Wait, Any, tuple[str, int, Key | None, bytes]]:
        """Return SHA-256 and size of what was read, the key under which that can be trusted, if it can, and the bytes of a small file."""
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

    def mark(self, connection: Connection, header: dict[str, Any], payload: bytes) -> Steps:
        """Let the scan ``scan_id``, which is stored under ``digest``, be what the next one is compared with.

        Payload: array of rows as a scan sends them, of what is stored otherwise than it was scanned; a row of a path
        alone: not stored. ``more`` in a header says that another frame of rows follows.
        """
        rows = loads(payload)
        more = header.get("more")
        while more:
            part, payload = yield "frame"
            rows += loads(payload)
            more = part.get("more")
        if self.tree.pending is not None and self.tree.pending[0] == header["scan_id"]:
            _, self.tree.entries, self.tree.keys = self.tree.pending
            self.tree.pending = None
            self.tree.digest = str(header["digest"])
            for path, *entry in rows:
                self.tree.keys.pop(path, None)
                if entry:
                    self.tree.entries[path] = (entry[0], entry[1], entry[2], entry[3])
                else:
                    self.tree.entries.pop(path, None)
        connection.send({"end": 1})
