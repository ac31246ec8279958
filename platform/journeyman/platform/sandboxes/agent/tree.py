"""Open, list and remove what commands made unreadable to their own user."""

from __future__ import annotations

import os
import stat

from .protocol import ROOTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


def unlock_roots() -> None:
    """Give the agent back the snapshot roots, after a command took away every permission on them."""
    for root in ROOTS:
        mode = stat.S_IMODE(os.stat(f"/{root}").st_mode)
        if mode & 0o700 != 0o700:
            os.chmod(f"/{root}", mode | 0o700)


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
    """Remove everything below a directory, one directory a step."""
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
