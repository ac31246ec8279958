"""Operation ``search``."""

from __future__ import annotations

import os
import stat

from .command import RunningCommand
from .processes import send_signal
from .protocol import MAX_PAYLOAD, OpError, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from .connections import Connection
    from .files import Files
    from .protocol import Steps
    from .supervisor import Supervisor
else:
    import _signal as signal


class SearchRun:
    def __init__(self, files: Files, supervisor: Supervisor) -> None:
        self.files = files
        self.supervisor = supervisor
        self.started = 0

    def search(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """Send rows ``[path, line number, line]`` in frames with ``items``, then ``end``.

        ``path``: file or directory; ``pattern``: regular expression; ``glob``: of names, or of paths when it has a
        slash; ``limit``: rows at most; ``limit_s``: seconds. Errors: ``file_…``; ``search_refused`` for a pattern that
        is none, or that takes too long.
        """
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
        self.started += 1
        command = RunningCommand(f"search-{self.started}", 4 * MAX_PAYLOAD)
        command.deadline = command.started + float(header["limit_s"])
        self.supervisor.spawn(command, lambda: search_files(start, pattern, glob, int(header["limit"])), b"")
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
        yield from connection.send_rows("items", hits)
        connection.send({"end": 1})


def search_files(start: str, pattern: str, glob: str | None, limit: int) -> None:
    """Print hits as JSON lines. Runs in a process of its own, since a regular expression can take for ever."""
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
                number, ended = 0, True
                for raw in iter(lambda: file.readline(64 * 1024), b""):
                    number += ended  # a very long line is searched in pieces, and counts once
                    ended = raw.endswith(b"\n")
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
