"""One simple command of a shell script, and what it runs in its turn: behind ``env``, ``sudo``, ``xargs``, as ``sh -c``."""

import re
from dataclasses import dataclass, replace
from typing import Final

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "rbash"})
MAX_DEPTH: Final = 12
ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. Quotes are gone, variables whose value the script itself gives are filled in.

    ``writes`` and ``reads``: targets of redirections. ``stdin``: the text of a here-document or here-string.
    ``variables``: names whose value the script does not tell. ``substitutions``: the scripts in ``$(…)``, backticks and
    ``<(…)`` among its words. ``piped``: the commands before it in its pipeline, the first one first. ``cwd``: the folder it
    runs in, as far as ``cd`` tells, relative to where the script begins or absolute.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    stdin: str | None = None
    variables: frozenset[str] = frozenset()
    substitutions: tuple[str, ...] = ()
    piped: tuple["Command", ...] = ()
    cwd: str = "."
    elevated: bool = False
    """Run through ``sudo`` or the like."""

    @property
    def name(self) -> str:
        """The program without its folder; empty for a command that is nothing but redirections."""
        return self.words[0].rpartition("/")[2] if self.words else ""

    @property
    def text(self) -> str:
        """The command on one line, for patterns."""
        redirections = [f"< {path}" for path in self.reads] + [f"> {path}" for path in self.writes]
        return " ".join([*([self.name, *self.words[1:]] if self.words else []), *redirections])

    @property
    def operands(self) -> list[str]:
        """The arguments that are no options."""
        words = list(self.words[1:])
        if "--" in words:
            at = words.index("--")
            return [word for word in words[:at] if not word.startswith("-")] + words[at + 1 :]
        return [word for word in words if not word.startswith("-") or word == "-"]

    def has(self, short: str, *long: str) -> bool:
        """Whether one of the single letters or long options is given, also within ``-rf``."""
        for word in self.words[1:]:
            if word == "--":
                return False
            if word.startswith("--"):
                if word.partition("=")[0] in long:
                    return True
            elif word.startswith("-") and any(letter in word[1:] for letter in short):
                return True
        return False


def script_of(words: tuple[str, ...]) -> str | None:
    """The script after ``-c`` (also ``-lc``, ``-ec`` …) of a shell."""
    for index, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            rest = [each for each in words[index + 1 :] if not re.fullmatch(r"[-+][a-zA-Z]+", each)]
            return rest[0] if rest else None
        if not word.startswith(("-", "+")):
            return None
    return None


def until(words: tuple[str, ...], ends: set[str]) -> tuple[str, ...]:
    """The words before the first of ``ends``."""
    taken = []
    for word in words:
        if word in ends:
            break
        taken.append(word)
    return tuple(taken)


_WITH_VALUE: Final = {
    "sudo": {"-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-U", "-D", "-R", "--user", "--group", "--chdir"},
    "doas": {"-u", "-C"},
    "env": {"-u", "-C", "-S", "--unset", "--chdir"},
    "nice": {"-n"},
    "ionice": {"-c", "-n", "-p"},
    "timeout": {"-s", "-k", "--signal", "--kill-after"},
    "xargs": {"-I", "-n", "-P", "-L", "-d", "-s", "-a", "-E", "--max-args", "--max-procs", "--delimiter"},
    "stdbuf": {"-i", "-o", "-e"},
    "time": {"-f", "-o"},
    "strace": {"-e", "-o", "-p", "-s"},
    "flock": {"-w", "-E", "-x"},
    "watch": {"-n"},
    "parallel": {"-j", "-a", "--jobs"},
    "chroot": {"--userspec", "--groups"},
    "unshare": set(),
    "nohup": set(),
    "setsid": set(),
    "command": set(),
    "builtin": set(),
    "exec": {"-a"},
    "busybox": set(),
    "toybox": set(),
    "caffeinate": set(),
    "unbuffer": set(),
}
"""Commands that run another one, and those of their options that take a value."""

_POSITIONAL: Final = {"timeout": 1, "flock": 1, "chroot": 1}
"""Arguments of their own before the command."""


def unwrapped(command: Command) -> Command:
    """The command behind its wrappers."""
    words, elevated = command.words, command.elevated
    for _ in range(MAX_DEPTH):
        name = words[0].rpartition("/")[2] if words else ""
        if name not in _WITH_VALUE:
            break
        rest = list(words[1:])
        if name == "command" and rest and rest[0] in {"-v", "-V"}:
            break
        while rest and (rest[0].startswith("-") or ASSIGNMENT.fullmatch(rest[0])):
            option = rest.pop(0)
            if option == "--":
                break
            if option in {"-S", "--split-string"} and rest and name == "env":
                rest[:1] = rest[0].split()
            elif option in _WITH_VALUE[name] and rest:
                rest.pop(0)
        rest = rest[_POSITIONAL.get(name, 0) :]
        elevated = elevated or name in {"sudo", "doas"}
        if not rest:
            break
        words = tuple(rest)
    return replace(command, words=words, elevated=elevated)
