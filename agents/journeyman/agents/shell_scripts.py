"""Scripts that a command runs in its turn: an argument (``sh -c``, ``eval``, ``trap``) or its standard input."""

import re
from typing import Final

from journeyman.agents.shell_commands import SHELLS, Command, script_of, unknown

LATE_COMMAND: Final = "runs a command that is known only when it runs"
LATE_SCRIPT: Final = "runs a script that is known only when it runs"


def scripts_of(command: Command) -> tuple[list[str], str | None]:
    """Scripts that the command is given, and why what it runs is not known."""
    name, words = command.name, command.words
    if name in SHELLS:
        script = script_of(words)
        if script is not None:
            return [script], LATE_SCRIPT if unknown(script) else None
        operands = [word for word in words[1:] if not word.startswith(("-", "+"))]
        if (
            operands
            and operands[0] != "/dev/stdin"
            and not any(re.fullmatch(r"-[a-zA-Z]*s", word) for word in words[1:])
        ):
            return [], LATE_SCRIPT if unknown(operands[0]) else None
        if command.appended and not operands:
            return [], LATE_SCRIPT
        return _from_input(command)
    if name in {"source", "."}:
        return [], LATE_SCRIPT if len(words) < 2 or unknown(words[1]) or words[1] == "/dev/stdin" else None
    if name == "eval":
        return [" ".join(words[1:])], LATE_SCRIPT if command.appended or any(map(unknown, words[1:])) else None
    if name == "trap" and len(words) > 2:
        return [words[1]], LATE_SCRIPT if unknown(words[1]) else None
    if name == "su" and "-c" in words[1:-1]:
        return [words[words.index("-c") + 1]], None
    return [], None


def _from_input(command: Command) -> tuple[list[str], str | None]:
    """The script that a shell reads from its standard input."""
    if command.reads:
        return [], LATE_SCRIPT if unknown(command.reads[-1]) or command.reads[-1].startswith("<(") else None
    if command.stdin is not None:
        return [command.stdin], LATE_SCRIPT if unknown(command.stdin) else None
    if not command.piped:
        return [], None if {"--version", "--help"} & set(command.words) else LATE_SCRIPT
    last = command.piped[-1]
    if last.name in {"echo", "printf"}:
        printed = [word for word in last.words[1:] if not re.fullmatch(r"-[neE]+", word)]
        late = (
            any(map(unknown, printed))
            or (last.name == "printf" and any("%" in word for word in printed))
            or "\\x" in last.text
        )
        return [" ".join(printed).replace("\\n", "\n")], LATE_SCRIPT if late else None
    if last.name == "cat" and last.stdin is not None and not last.operands:
        return [last.stdin], LATE_SCRIPT if unknown(last.stdin) else None
    if last.name == "cat" and last.operands and not any(map(unknown, last.operands)):
        return [], None  # the same as running these files
    return [], LATE_SCRIPT
