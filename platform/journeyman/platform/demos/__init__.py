"""The bundled demo tasks: real input, a task to submit, and a script with which the replay engine plays it.

Each folder beside this file is one demo, named by its slug:

    task.json    the body for ``POST /v1/tasks``; ``"workspace": {"source": "archive"}`` wants the upload's id added
    workspace/   the files that the task starts from; missing when it starts from nothing
    script.json  scripted answers for the replay engine; any real model can be used instead
"""

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from journeyman.platform.kit.errors import NotFound

_FOLDER: Final = Path(__file__).parent
_ORDER: Final = ("fix-failing-test", "build-cli-tool", "analyse-prices")
_LEFT_OUT: Final = frozenset({"__pycache__", ".DS_Store"})


@dataclass(frozen=True, slots=True)
class Demo:
    """One demo task."""

    slug: str
    folder: Path

    @property
    def task(self) -> dict[str, Any]:
        """The body for ``POST /v1/tasks``, as a copy of the caller's own."""
        return deepcopy(_read_json(self.folder / "task.json"))

    @property
    def script(self) -> dict[str, Any]:
        """The script for the replay engine, as a copy of the caller's own."""
        return deepcopy(_read_json(self.folder / "script.json"))

    @property
    def title(self) -> str:
        """One line for people."""
        return str(self.task["title"])

    @property
    def workspace(self) -> Path | None:
        """The folder that the task starts from; None when it starts from nothing."""
        folder = self.folder / "workspace"
        return folder if folder.is_dir() else None

    def files(self) -> Iterator[tuple[str, Path]]:
        """Paths relative to the workspace, with slashes and sorted, and where the files are."""
        if self.workspace is None:
            return
        for path in sorted(self.workspace.rglob("*")):
            inside = path.relative_to(self.workspace)
            if path.is_file() and not _LEFT_OUT.intersection(inside.parts):
                yield inside.as_posix(), path

    def pack_workspace(self) -> bytes:
        """The workspace as a ``.tar.gz``: the same bytes for the same files, whoever packs them and when."""
        buffer = io.BytesIO()
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, path in self.files():
                content = path.read_bytes()
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                # Installers do not agree on modes; a script of the demos is always started through its interpreter.
                entry.mode = 0o644
                archive.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()


def catalog() -> list[Demo]:
    """All bundled demos, the first to try first."""
    found = {path.parent.name for path in _FOLDER.glob("*/task.json")}
    ordered = [slug for slug in _ORDER if slug in found]
    return [Demo(slug, _FOLDER / slug) for slug in (*ordered, *sorted(found.difference(ordered)))]


def load(slug: str) -> Demo:
    """The demo of that name; :class:`NotFound` names those there are."""
    for demo in catalog():
        if demo.slug == slug:
            return demo
    known = ", ".join(demo.slug for demo in catalog())
    raise NotFound(f"There is no demo {slug!r}. The bundled demos are: {known}.", demos=known.split(", "))


@cache
def _read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value
