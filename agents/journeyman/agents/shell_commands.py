"""Simple commands of a shell script, and the commands that run other commands: ``env``, ``sudo``, ``xargs``, ``sh -c``."""

import re
from dataclasses import dataclass, replace
from typing import Final, Self

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "rbash"})
MAX_DEPTH: Final = 12
ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)


class Word(str):
    """One argument after expansion.

    ``prefix`` is None when the whole text is known. Otherwise the text shows the expansion as it is written (``a/$X``) and
    ``prefix`` is the known text before it. ``glob``: an unquoted pattern that the shell replaces by matching paths.
    """

    __slots__ = ("glob", "prefix")
    glob: bool
    prefix: str | None

    def __new__(cls, text: str, prefix: str | None = None, *, glob: bool = False) -> Self:
        word = super().__new__(cls, text)
        word.prefix = prefix
        word.glob = glob
        return word


def unknown(word: str) -> bool:
    """Whether the value of a part of the word is decided only when the script runs."""
    return isinstance(word, Word) and word.prefix is not None


def unanchored(word: str) -> bool:
    """Whether even the beginning of the word is decided only when the script runs."""
    return isinstance(word, Word) and word.prefix == ""


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. Quotes are removed; variables that the script itself sets are expanded.

    ``writes`` and ``reads``: targets of redirections. ``stdin``: the text of a here-document or here-string.
    ``variables``: names that are not expanded. ``assigned``: variables set for it, as ``NAME=value``. ``substitutions``: the scripts in
    ``$(…)``, backticks and ``<(…)`` among its words. ``piped``: the commands before it in its pipeline. ``cwd``: the folder
    it runs in as far as ``cd`` shows, relative to where the script begins or absolute. ``appended``: further operands come
    from ``xargs`` or ``find -exec``. ``opaque``: why it cannot be known what it runs.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    stdin: str | None = None
    variables: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    substitutions: tuple[str, ...] = ()
    piped: tuple["Command", ...] = ()
    cwd: str = "."
    elevated: bool = False
    appended: bool = False
    opaque: str | None = None

    @property
    def name(self) -> str:
        """The program without its folder; empty for a command that is only redirections or assignments."""
        return self.words[0].rpartition("/")[2] if self.words else ""

    @property
    def text(self) -> str:
        """The command on one line, for patterns."""
        redirections = [f"< {path}" for path in self.reads] + [f"> {path}" for path in self.writes]
        return " ".join([*([self.name, *self.words[1:]] if self.words else []), *redirections])

    @property
    def operands(self) -> list[str]:
        """The arguments that are not options."""
        words = list(self.words[1:])
        if "--" in words:
            at = words.index("--")
            return [word for word in words[:at] if not word.startswith("-")] + words[at + 1 :]
        return [word for word in words if not word.startswith("-") or word == "-"]

    def has(self, flags: frozenset[str]) -> bool:
        """Whether one of the options is given. ``-x`` is also found within ``-axz``, ``--long`` also as ``--long=value``."""
        for word in self.words[1:]:
            if word == "--":
                return False
            if word in flags or word.partition("=")[0] in flags:
                return True
            if word.startswith("-") and not word.startswith("--") and any(f"-{letter}" in flags for letter in word[1:]):
                return True
        return False

    def after(self, *options: str) -> list[str]:
        """The values that follow the options as words of their own or behind ``=``."""
        found = [value for option, value in zip(self.words[1:], self.words[2:], strict=False) if option in options]
        return found + [
            word.partition("=")[2] for word in self.words[1:] if word.partition("=")[0] in options and "=" in word
        ]


def script_of(words: tuple[str, ...]) -> str | None:
    """The script after ``-c`` (also ``-lc``, ``-ec`` …) of a shell."""
    for index, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            rest = [each for each in words[index + 1 :] if not re.fullmatch(r"[-+][a-zA-Z]+", each)]
            return rest[0] if rest else None
        if not word.startswith(("-", "+")):
            return None
    return None


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
"""Commands that run another command, and those of their options that take a value."""

_POSITIONAL: Final = {"timeout": 1, "flock": 1, "chroot": 1}
"""Arguments of their own before the command."""
_APPENDING: Final = frozenset({"xargs", "parallel"})
_REPLACES: Final = frozenset({"-I", "-i", "--replace"})


def unwrapped(command: Command) -> Command:
    """The command behind its wrappers. A wrapper without a command stays as it is."""
    words, elevated, appended, assigned = command.words, command.elevated, command.appended, command.assigned
    opaque = command.opaque
    for _ in range(MAX_DEPTH):
        name = words[0].rpartition("/")[2] if words else ""
        if name not in _WITH_VALUE:
            break
        rest = list(words[1:])
        if name == "command" and rest and rest[0] in {"-v", "-V"}:
            break
        replaced = "{}" if name == "parallel" else ""
        while rest and (rest[0].startswith("-") or ASSIGNMENT.fullmatch(rest[0])):
            option = rest.pop(0)
            if option == "--":
                break
            if ASSIGNMENT.fullmatch(option):
                assigned |= {option}
            if option in {"-S", "--split-string"} and rest and name == "env":
                rest[:1] = rest[0].split()
            elif option in _WITH_VALUE[name] and rest:
                value = rest.pop(0)
                replaced = value if option in _REPLACES else replaced
            elif name == "xargs" and option.startswith("-I"):
                replaced = option[2:]
            elif name == "xargs" and option in _REPLACES:
                replaced = "{}"
        rest = rest[_POSITIONAL.get(name, 0) :]
        elevated = elevated or name in {"sudo", "doas"}
        if name in _APPENDING:
            appended = True
            if replaced:
                rest = [Word(each, each.partition(replaced)[0]) if replaced in each else each for each in rest]
        if not rest:
            if appended and name not in _APPENDING:
                opaque = "runs a command that is known only when it runs"
            break
        words = tuple(rest)
    return replace(command, words=words, elevated=elevated, appended=appended, assigned=assigned, opaque=opaque)
