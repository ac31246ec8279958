"""Logs of the children: each writes to its file by itself, so that a busy supervisor never holds one up."""

import os
import shutil
from pathlib import Path
from typing import IO, Final

LIMIT: Final = 8 * 1024**2
"""Bytes that a log may reach before it starts anew; the one before it is kept beside it as ``.1``."""


class LogFile:
    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self._limit = limit

    def open(self) -> IO[bytes]:
        """For the child to append to. Appending is what makes :meth:`rotate` safe: every write goes to the end there is."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return os.fdopen(fd, "ab", buffering=0)

    def rotate(self) -> bool:
        """Start the file anew when it has grown too large. What is written in this very moment may be lost."""
        try:
            if self.path.stat().st_size <= self._limit:
                return False
            shutil.copyfile(self.path, self.path.with_name(self.path.name + ".1"))
            os.truncate(self.path, 0)
        except OSError:  # a full disk, or a file that somebody removed: the log is not worth a stop
            return False
        return True

    def tail(self, lines: int = 15, limit: int = 4000) -> str:
        """The last lines, for an error message."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self.path.stat().st_size - limit))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return "(empty)"
        return "\n".join(text.strip().splitlines()[-lines:]) or "(empty)"
