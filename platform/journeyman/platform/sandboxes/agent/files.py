"""Operations on single files and directories, and the confinement of paths."""

from __future__ import annotations

import errno
import os
import stat

from .protocol import CHUNK, MAX_READ, OpError
from .tree import unlock_roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .connections import Connection
    from .protocol import Steps


def file_error(error: OSError, path: str) -> OpError:
    """Return the refusal ``file_…`` for an error of the system."""
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
        unlock_roots()
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

    def read(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """Send a file in frames with ``data``, then ``end`` with its ``size``.

        ``path``; ``start``: first byte; ``length``: bytes, or ``null`` for the rest. Errors: ``file_…``;
        ``file_too_large`` over ``MAX_READ`` bytes.
        """
        path = str(header["path"])
        try:
            fd = self.open_file(path)
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

    def write(self, connection: Connection, header: dict[str, Any], payload: bytes) -> Steps:
        """Replace a file as a whole, and make the directories that are missing on the way.

        ``path``; ``mode``: permission bits, or ``null`` for those that it has (0644 for a new one). Payload: content;
        ``more`` in a header says that another frame follows. Until the last, the old file is in place. Errors: ``file_…``.
        """
        path, mode = str(header["path"]), header.get("mode")
        temporary = ""
        parent = fd = -1
        try:
            root, parts = self.resolve(path)
            if not parts:
                raise OpError("file_is_a_directory", f"{path}: is a directory")
            parent = self.directory(root, parts[:-1], create=True)
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

    def list(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """Send rows ``[path, kind, size, mode, mtime]`` in frames with ``items``, then ``end``; sorted by path.

        ``path``; ``depth``: levels; ``limit``: rows at most. Errors: ``file_…``.
        """
        path = str(header["path"])
        root, parts = self.resolve(path)
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
                                kind_of(status.st_mode),
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
        yield from connection.send_rows("items", found)

        connection.send({"end": 1})


def kind_of(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"
