"""Which scripts there are. Files that change are read again at the next look."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import ValidationError

import journeyman.platform
from journeyman.platform.kit.settings import Settings
from journeyman.platform.replay.script import Script

_Stamp = tuple[int, int]


def bundled_scripts() -> Path:
    """The directory of the bundled demo tasks; each folder in it may hold a ``script.json``."""
    return Path(journeyman.platform.__path__[0]) / "demos"


class ReplayCatalog:
    """All scripts in the given directories: ``*.json`` in them and ``script.json`` in their folders.

    Earlier directories come first. A file that is no valid script plays nothing; ``problems`` says what is wrong
    with it.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = tuple(directories)
        self._read: dict[Path, tuple[_Stamp, Script | str]] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        own = [settings.replay_scripts] if settings.replay_scripts is not None else []
        return cls([*own, bundled_scripts()])

    def knows(self, instruction: str) -> bool:
        """Whether a task with this instruction can be played."""
        return self.script_for(instruction) is not None

    def script_for(self, instruction: str) -> Script | None:
        return next((script for script in self.scripts() if script.plays(instruction)), None)

    def scripts(self) -> list[Script]:
        self._refresh()
        return [script for _, script in self._read.values() if isinstance(script, Script)]

    def record(self, instruction: str, body: bytes) -> None:
        """Keep a request's body if the script wants it: ``<script>.requests/<number>.json``, numbered in order of arrival."""
        self._refresh()
        for path, (_, script) in self._read.items():
            if isinstance(script, Script) and script.plays(instruction):
                if script.record:
                    folder = path.with_suffix(".requests")
                    folder.mkdir(exist_ok=True)
                    (folder / f"{len(list(folder.iterdir())):06d}.json").write_bytes(body)
                return

    @property
    def problems(self) -> list[str]:
        """One sentence for each file that could not be read as a script."""
        self._refresh()
        return [problem for _, problem in self._read.values() if isinstance(problem, str)]

    def _refresh(self) -> None:
        current: dict[Path, tuple[_Stamp, Script | str]] = {}
        for path in self._files():
            try:
                status = path.stat()
            except OSError:
                continue
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._read.get(path)
            current[path] = known if known is not None and known[0] == stamp else (stamp, _read_script(path))
        self._read = current

    def _files(self) -> list[Path]:
        return [
            path
            for directory in self._directories
            if directory.is_dir()
            for path in (*sorted(directory.glob("*.json")), *sorted(directory.glob("*/script.json")))
        ]


def _read_script(path: Path) -> Script | str:
    try:
        return Script.model_validate_json(path.read_bytes())
    except OSError as error:
        return f"The script {path} cannot be read: {error.strerror}."
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        return f"The script {path} is not valid at {where}: {first['msg']}."
