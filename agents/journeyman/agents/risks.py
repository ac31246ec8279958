"""Which tool calls are shown to a person first, under ``on_risk``.

What only reads, and what changes the workspace in a way that can be undone, is let through; what is risky or unknown is asked
for. This is *not* a security border: the sandbox decides what an agent can reach at all. A program of the workspace may do
whatever the sandbox lets it do.
"""

import re
from collections.abc import Callable
from typing import Final

from journeyman.agents import inline_code, risky_paths, risky_traffic
from journeyman.agents.risk_tables import (
    ALWAYS,
    GIT_RUNS,
    HARMLESS_PAGERS,
    INTERPRETERS,
    OPTIONS_WITH_VALUE,
    READS,
    RULES,
    RUNS_COMMANDS,
    SECRET_NAME,
    SUBCOMMANDS,
    VERSIONED,
    WORKSPACE_TOOLS,
    WRITES,
    RiskRule,
)
from journeyman.agents.shell_commands import SHELLS, Command, unanchored, unknown
from journeyman.agents.shell_reader import ShellScript, read_script

UNKNOWN: Final = "runs a program or subcommand that is not known to stay within the workspace"
_SYSTEM: Final = re.compile(r"(/usr(/local)?)?/s?bin/[^/]+|/opt/[^ ]*/bin/[^/]+|~/\.local/bin/[^/]+")


def risk_of_sequence(parts: ShellScript) -> str | None:
    """What only several commands together show; the reason, or None."""
    if parts.problem:
        return parts.problem
    downloaded: set[str] = set()
    for command in parts.commands:
        if reason := risky_traffic.runs_download(command, downloaded):
            return reason
        downloaded |= risky_traffic.downloads(command)
    return None


def risk_of(command: Command) -> str | None:
    """Why one simple command is risky or unknown, by itself; None when it is neither."""
    command = _plain(command)
    for check in _CHECKS:
        if reason := check(command):
            return reason
    return None


def _plain(command: Command) -> Command:
    """The program that is meant, for ``python -m pip``, ``uv pip`` and names with a version."""
    words = command.words
    name = command.name
    if inline_code.PYTHON.fullmatch(name) and "-m" in words[1:-1]:
        words = words[words.index("-m") + 1 :]
        words = words if words[0] in SUBCOMMANDS else (name, "-m", *words)
    elif name == "uv" and words[1:2] in {("pip",), ("tool",)}:
        words = ("pip" if words[1] == "pip" else "pipx", *words[2:])
    elif versioned := VERSIONED.fullmatch(name):
        words = (versioned[1], *words[1:])
    if words is command.words:
        return command
    return Command(words, **{field: getattr(command, field) for field in Command.__slots__ if field != "words"})


def _verbs(command: Command) -> tuple[str, ...]:
    """The subcommand, alone and with the word behind it."""
    words = list(command.words[1:])
    with_value = OPTIONS_WITH_VALUE.get(command.name, frozenset())
    while words and words[0].startswith(("-", "+")):
        option = words.pop(0)
        if option in with_value and words:
            words.pop(0)
    if not words:
        return ()
    second = next((word for word in words[1:] if not word.startswith("-")), "")
    return (words[0], f"{words[0]} {second}")


def _elevates(command: Command) -> str | None:
    return "runs as another user" if command.elevated else None


def _always(command: Command) -> str | None:
    return ALWAYS.get(command.name) or ("destroys data" if command.name.startswith("mkfs.") else None)


def _by_rule(command: Command) -> str | None:
    rules = RULES.get(command.name)
    if not rules:
        return None
    verbs = _verbs(command)
    return next((rule.reason for rule in rules if _matches(rule, command, verbs)), None)


def _matches(rule: RiskRule, command: Command, verbs: tuple[str, ...]) -> bool:
    return (
        (not rule.verbs or not rule.verbs.isdisjoint(verbs))
        and (not rule.flags or command.has(rule.flags))
        and (not rule.unless or not command.has(rule.unless))
        and (not rule.operands or not rule.operands.isdisjoint(command.operands))
    )


_RECURSIVE: Final = frozenset({"-r", "-R", "--recursive"})
_NARROWING: Final = frozenset({"-name", "-iname", "-path", "-ipath", "-regex", "-empty", "-newer"})
_LISTS: Final = frozenset({"find", "fd", "fdfind", "ls", "git", "grep", "rg"})


def _deletes(command: Command) -> str | None:
    name, targets = command.name, command.operands
    if name == "rm":
        if any(target in {"*", "./*", "/*"} for target in targets):
            return "deletes widely"
        if command.has(_RECURSIVE) and any(risky_paths.wide(target, command.cwd) for target in targets):
            return "deletes widely"
    if name in {"rm", "rmdir", "unlink", "shred", "mv"} and command.appended and not _lists_narrowly(command):
        return "deletes widely"
    if name == "find" and "-delete" in command.words:
        return None if _NARROWING & set(command.words) and _near(command) else "deletes widely"
    if name == "find" and any(unanchored(word) for word in command.words[2:]):
        return "may delete what it finds"
    if name == "dd" and any(
        word.startswith("of=/dev/") and not risky_paths.HARMLESS_DEVICES.fullmatch(word[3:]) for word in command.words
    ):
        return "destroys data"
    if name in {"psql", "mysql", "mariadb", "sqlite3", "duckdb"}:
        text = " ".join([*command.words, command.stdin or ""])
        if re.search(r"\b(drop\s+(table|database|schema)|truncate\s+table)\b", text, re.IGNORECASE):
            return "deletes data of a database"
        return UNKNOWN if re.search(r"(^|\s)(\.(shell|system)|\\!)", text) else None
    return None


def _near(command: Command) -> bool:
    """Whether ``find`` and the like look within the task's own folders only."""
    folders = []
    for word in command.words[1:]:
        if word.startswith(("-", "(", "!")):
            break
        folders.append(word)
    return all(not unknown(each) and risky_paths.inside(risky_paths.resolve(each, command.cwd)) for each in folders)


def _lists_narrowly(command: Command) -> bool:
    """Whether what ``xargs`` or ``find -exec`` appends is a part of the workspace, not all of it."""
    source = command.piped[0] if command.piped else None
    if (
        source is None
        or source.name not in _LISTS
        or any(each.name not in {*_LISTS, "head", "sort", "uniq"} for each in command.piped)
    ):
        return False
    if source.name == "find":
        return bool(_NARROWING & set(source.words)) and _near(source)
    if source.name in {"fd", "fdfind", "grep", "rg"}:
        return not any(word.startswith(("/", "~", "..")) or unknown(word) for word in source.operands)
    return source.name == "git" and not command.has(_RECURSIVE)


def _permissions(command: Command) -> str | None:
    if command.name == "chmod" and any(
        re.fullmatch(r"[ugoa]*\+[rwx]*s[rwx]*|[2467][0-7]{3}", word) for word in command.words
    ):
        return "makes a program run as its owner"
    return None


def _kills(command: Command) -> str | None:
    if command.name != "kill" or {"-l", "-L", "-0"} & set(command.words[1:2]):
        return None
    # What the script itself started is its own: jobs, $!, the content of a pid file.
    for word in command.operands[1 if command.words[1:2] == ("-s",) else 0 :]:
        if re.fullmatch(r"\d+", word):
            return "kills processes"
    return "kills processes" if "-1" in command.words[2:] or command.appended else None


def _credentials(command: Command) -> str | None:
    if any(SECRET_NAME.search(name.upper()) for name in command.variables) and command.name not in {"test", "[", "[["}:
        return "uses credentials"
    if any(map(risky_paths.names_credentials, [*command.words[1:], *command.reads, *command.writes])):
        return "touches credentials"
    if command.name in {"[", "[[", "test"}:
        return None
    if command.name == "printenv" and any(SECRET_NAME.search(word.upper()) for word in command.words[1:]):
        return "uses credentials"
    return None


def _settings(command: Command) -> str | None:
    """Variables and settings that make another program run commands."""
    reason = "makes other programs run a command"
    for assignment in command.assigned:
        name, _, value = assignment.partition("=")
        if RUNS_COMMANDS.fullmatch(name) and value not in HARMLESS_PAGERS:
            return reason
    if command.name == "git":
        settings = command.after("-c", "--config-env")
        if "config" in _verbs(command) and not command.has(
            frozenset({"--get", "--list", "-l", "--get-all", "--get-regexp"})
        ):
            settings += command.operands[:3]
        if any(
            GIT_RUNS.fullmatch(each) and each.partition("=")[2] not in HARMLESS_PAGERS
            for each in settings
            if "=" in each
        ):
            return reason
        if any(GIT_RUNS.fullmatch(each) for each in settings if "=" not in each) and len(command.operands) > 2:
            return reason
        if command.has(frozenset({"--upload-pack", "--receive-pack", "--ext-diff", "--open-files-in-pager", "--exec"})):
            return reason
    return None


_AWK_RUNS: Final = re.compile(r"\bsystem\s*\(|\|\s*getline|\|\s*[\"&]|print[^;}]*\|\s*\S|/inet/")
_SED_RUNS: Final = re.compile(
    r"(^|[;{\n]|^\d+|\$|/)\s*e(\s|$)|([^\w\s\\])(?:(?!\3).)*\3(?:(?!\3).)*\3[gipmI0-9]*e[gipmI0-9]*\s*($|[;}])"
)


def _programs_in_arguments(command: Command) -> str | None:
    """Programs of ``awk`` and ``sed`` that run commands; options of other programs that do."""
    name = command.name
    if name in {"awk", "gawk", "mawk", "nawk"} and any(
        _AWK_RUNS.search(word) or unknown(word) for word in command.operands[:1]
    ):
        return "runs a command through awk"
    if name in {"sed", "gsed"} and any(
        _SED_RUNS.search(word) for word in [*command.operands[:1], *command.after("-e")]
    ):
        return "runs a command through sed"
    if name == "tar" and any(
        word.startswith(("--to-command", "--checkpoint-action", "-I", "--use-compress")) for word in command.words
    ):
        return "runs a command through tar"
    return None


def _inline(command: Command) -> str | None:
    """Commands, deletions and writes spelt out in code for an interpreter."""
    if not INTERPRETERS.fullmatch(command.name):
        return None
    codes = _codes(command)
    if isinstance(codes, str):
        return codes
    for code in codes:
        effects = inline_code.effects_of(command.name, code)
        if any(risky_paths.wide(path, command.cwd) for path in effects.removed):
            return "deletes widely"
        for script in effects.scripts:
            inner = read_script(script)
            if reason := next(filter(None, map(risk_of, inner.commands)), inner.problem):
                return reason
        for path in (*effects.removed, *effects.written):
            if not risky_paths.inside(resolved := risky_paths.resolve(path, command.cwd)):
                return f"writes outside the workspace ({resolved[:80]})"
        if effects.late or unknown(code):
            return inline_code.LATE
    return None


def _codes(command: Command) -> list[str] | str:
    """The code on the command line and in the standard input, or why it is not known."""
    words = command.words
    options = [
        index for index, word in enumerate(words[1:-1], 1) if re.fullmatch(r"-[a-zA-Z]*[ceEr]|--eval|--print|-p", word)
    ]
    if options and not (command.name.startswith(("php", "ruby", "perl")) and words[options[0]] == "-c"):
        return [words[options[0] + 1]]
    operands = command.operands
    if "-m" in words or (operands and operands[0] not in {"-", "/dev/stdin"}):
        return inline_code.LATE if "-m" not in words and unknown(operands[0]) else []
    if {"--version", "-V", "-v", "--help", "-h"} & set(words):
        return []
    if command.stdin is not None:
        return [command.stdin]
    if command.reads and not any(map(unknown, command.reads)):
        return []
    if command.piped and command.piped[-1].name == "cat" and command.piped[-1].stdin is not None:
        return [command.piped[-1].stdin]
    if command.piped and command.piped[-1].name == "echo" and not any(map(unknown, command.piped[-1].words)):
        return [" ".join(command.piped[-1].words[1:])]
    return inline_code.LATE if command.piped or command.appended or operands else []


def _opaque(command: Command) -> str | None:
    return command.opaque


def _is_unknown(command: Command) -> str | None:
    """Whatever no check has objected to is let through only if it is in a table, or is the workspace's own."""
    name = command.name
    if not name or command.opaque:
        return None
    first = command.words[0]
    verbs = _verbs(command)
    if name in SUBCOMMANDS:
        return None if not verbs or (verbs[0] in SUBCOMMANDS[name] and not unknown(command.words[1])) else UNKNOWN
    if "/" in first and not _SYSTEM.fullmatch(first):
        return None if risky_paths.inside(risky_paths.resolve(first, command.cwd)) else UNKNOWN
    if name in SHELLS | {"source", "."} or INTERPRETERS.fullmatch(name):
        return _foreign_script(command)
    return None if name in READS or name in WRITES or name in WORKSPACE_TOOLS else UNKNOWN


def _foreign_script(command: Command) -> str | None:
    script = next(iter(command.operands), "")
    options = any(re.fullmatch(r"-\w*[cme]", word) for word in command.words)
    if options or not script.startswith(("/", "~")) or script.startswith(("/usr/", "/opt/", "/dev/stdin")):
        return None
    return None if risky_paths.inside(risky_paths.resolve(script, command.cwd)) else UNKNOWN


_CHECKS: Final[tuple[Callable[[Command], str | None], ...]] = (
    _elevates,
    _always,
    _deletes,
    _by_rule,
    _permissions,
    risky_traffic.asks_for_packages,
    risky_traffic.pipes_download,
    risky_traffic.sends,
    _kills,
    _credentials,
    _settings,
    risky_paths.writes_outside,
    _programs_in_arguments,
    _inline,
    _opaque,
    _is_unknown,
)
