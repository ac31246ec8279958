"""What a command takes from or gives to other machines: downloads that are run, data that is sent. Each check gives a reason or None."""

import re
from typing import Final

from journeyman.agents.risk_tables import DECODERS, DOWNLOADERS, INTERPRETERS, SENDING, SENDING_METHODS
from journeyman.agents.shell_commands import SHELLS, Command, Word, unknown
from journeyman.agents.shell_reader import read_script

_RUNS: Final = "runs what it downloads or decodes"
_SENDS: Final = "sends data to another machine"
_NEAR: Final = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\]|0\.0\.0\.0)(:\d+)?(/|$)")
_FETCHES: Final = frozenset({"curl", "wget"})
_OUTPUTS: Final = ("-o", "-O", "--output", "--output-document")


def asks_for_packages(command: Command) -> str | None:
    """``yarn`` alone installs."""
    alone = command.name == "yarn" and not command.operands and not command.has(frozenset({"--version", "-v"}))
    return "installs or removes packages" if alone else None


def _runs_code(command: Command) -> bool:
    """Whether it is an interpreter that runs what it is given, and not a file."""
    name, words = command.name, command.words
    if name in SHELLS or name in {"eval", "source", "."}:
        return True
    return bool(INTERPRETERS.fullmatch(name)) and (len(words) == 1 or words[1] in {"-", "-c", "-e", "/dev/stdin"})


def pipes_download(command: Command) -> str | None:
    """Runs what it, or what is piped into it, has downloaded or decoded."""
    fetched = any(
        each.name in DOWNLOADERS | DECODERS for script in command.substitutions for each in read_script(script).commands
    )
    first = command.words[0] if command.words else ""
    if first.startswith("$(") and fetched:
        return _RUNS
    if not _runs_code(command):
        return None
    if fetched:
        return _RUNS
    operands = [word for word in command.words[1:] if not word.startswith("-")]
    reads_input = not operands or operands == ["/dev/stdin"] or "-s" in command.words or "-" in command.words
    if reads_input and any(each.name in DOWNLOADERS | DECODERS for each in command.piped):
        return _RUNS
    return None


def downloads(command: Command) -> set[str]:
    """Files that the command fetches."""
    if command.name not in _FETCHES:
        return set()
    named = {word for word in command.after(*_OUTPUTS) if not word.startswith("-")}
    named |= {word.rpartition("/")[2].partition("?")[0] for word in command.words[1:] if "://" in word}
    named |= set(command.writes)
    return {name.removeprefix("./") for name in named if name}


def runs_download(command: Command, downloaded: set[str]) -> str | None:
    """Runs one of the files that earlier commands have fetched."""
    if not downloaded or not command.words:
        return None
    runs = [command.words[0]] if "/" in command.words[0] else []
    if command.name in SHELLS or command.name in {"source", "."} or INTERPRETERS.fullmatch(command.name):
        runs += [word for word in command.words[1:] if not word.startswith("-")][:1]
        runs += command.reads
        runs += command.piped[-1].operands if command.piped and command.piped[-1].name == "cat" else []
    return _RUNS if any(word.removeprefix("./") in downloaded for word in runs) else None


def sends(command: Command) -> str | None:
    """Sends data to another machine."""
    if command.name == "rsync" and any(re.match(r"[\w.@-]+:", word) for word in command.operands):
        return "connects to another machine"
    if command.name not in {*_FETCHES, "http", "https", "xh"}:
        return None
    if _is_near(command):
        return None
    for word in command.words:
        if word.startswith(SENDING) and not word.startswith(("--delegation", "--form-string")):
            return _SENDS
        if isinstance(word, Word) and unknown(word) and "$(" in word and "://" in word:
            return _SENDS  # the address itself may carry data
    methods = [*command.after("-X", "--request", "--method")]
    methods += [word[2:] for word in command.words if re.fullmatch(r"-X[A-Z]+", word)]
    return _SENDS if any(method.upper() in SENDING_METHODS for method in methods) else None


def _is_near(command: Command) -> bool:
    """Whether every address is of this machine."""
    addresses = [word for word in command.words[1:] if "://" in word]
    addresses = addresses or [word for word in command.operands if _NEAR.match(word)]
    return bool(addresses) and all(_NEAR.match(re.sub(r"^\w+://", "", word)) for word in addresses)
