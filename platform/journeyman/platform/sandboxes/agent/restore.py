"""Operation ``tree``."""

from __future__ import annotations

import os

from .contents import inside
from .files import file_error
from .protocol import ROOTS, loads
from .scans import key_of
from .tree import remove_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .connections import Connection
    from .protocol import Steps
    from .scans import Entry, Tree


class Restore:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def restore(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """Replace what the snapshot roots hold by the snapshot ``digest``.

        Frames that follow: ``entries`` (payload: array of rows as a scan sends them, directories before what they
        hold), ``parts`` (``[index of the entry, length, whether it is the last]``; payload: their bytes), and ``done``.
        Answer: ``end``. Errors: ``file_…``, ``file_no_space``; the roots are then incomplete.
        """
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
                        entries[inside(path)] = (kind, mode & 0o777, size, content)
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
