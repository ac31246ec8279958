"""Commands suggested to people: how this program is called from here, and lines that break nowhere inside a command."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_MARGIN: Final = "  "


class Suggestion(NamedTuple):
    """A command, and in a few words what it is for."""

    purpose: str
    command: str


@cache
def command() -> str:
    """How this command is called from here: by its name when it is on the path, else by its place."""
    if shutil.which("journeyman") is not None:
        return "journeyman"
    script = Path(sys.executable).with_name("journeyman")
    try:
        return shlex.quote(str(script.relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(script))


def laid_out(suggestions: Sequence[Suggestion], width: int | None = None) -> list[str]:
    """A line each, purpose before command; a command that would pass ``width`` so has a line for itself."""
    column = max((len(each.purpose) + 2 for each in suggestions), default=0)

    def lines_for(each: Suggestion) -> list[str]:
        line = f"{_MARGIN}{each.purpose + ':':<{column}}{each.command}"
        if width is None or len(line) <= width:
            return [line]
        margin = _MARGIN * 2 if len(_MARGIN * 2 + each.command) <= width else ""
        return [f"{_MARGIN}{each.purpose}:", margin + each.command]

    return [line for each in suggestions for line in lines_for(each)]


def terminal_width() -> int | None:
    """Columns to lay lines out for: none in a pipe, where no line is broken."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
