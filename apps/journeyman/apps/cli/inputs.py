"""What people hand to commands: texts and JSON, from the command line, from files and from standard input."""

import json
import sys
from pathlib import Path
from typing import Any

from journeyman.apps.cli.view import Json
from journeyman.apps.exits import CommandError


def text_or_stdin(given: str, what: str) -> str:
    """The text itself; for ``-`` what standard input holds. Raises :class:`CommandError` for what is not UTF-8."""
    if given != "-":
        return given
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{what} on standard input is not UTF-8 (byte {error.start}).") from None


def text_or_file(given: str) -> str:
    """The text itself, or that of the file behind ``@``. Raises :class:`CommandError` for one that cannot be read."""
    return _read(Path(given[1:])) if given.startswith("@") else given


def json_object(path: Path, what: str) -> Json:
    """The JSON object in a file, or for ``-`` on standard input; ``what`` it has to be. Raises :class:`CommandError`."""
    text = text_or_stdin("-", "The JSON") if str(path) == "-" else _read(path)
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(found, dict):
        raise CommandError(f"{path} must hold one JSON object: {what}.")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8 (byte {error.start}).") from None
