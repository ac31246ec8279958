"""Which tool calls look dangerous enough to show them to a person first.

A heuristic that spares people from approving every ``ls``, and nothing more: it is *not* a security border. It reads what a
command says, follows quotes, lists, wrappers, ``sh -c`` and simple variables, and cannot know what a program, a script in a
file or an encoded text will do. What an agent can reach at all is decided by the sandbox. It leans towards asking where
something is rarely meant, and towards silence where agents do it all day.
"""

import re
from collections.abc import Callable
from typing import Final

from journeyman.agents import risky_paths, risky_traffic
from journeyman.agents.shell_commands import Command
from journeyman.agents.shell_words import Script, take_apart

_SECRET_NAME: Final = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY)(_|$)|(API|PRIVATE|ACCESS|SECRET)_?KEY"
)
_FORK_BOMB: Final = re.compile(r":\s*\(\)\s*\{[^}]{0,100}:\s*\|\s*:")
_ALWAYS: Final = {
    **dict.fromkeys(("killall", "pkill", "reboot", "shutdown", "halt", "poweroff", "init"), "kills processes"),
    **dict.fromkeys(
        ("mount", "umount", "iptables", "nft", "sysctl", "crontab", "systemctl", "service", "useradd", "userdel",
         "usermod", "passwd", "chpasswd", "visudo", "insmod", "modprobe", "swapoff", "at", "su"),
        "changes the machine, not the workspace",
    ),
    **dict.fromkeys(("mkfs", "wipefs", "fdisk", "parted", "shred", "blkdiscard"), "destroys data"),
    **dict.fromkeys(("aws", "gcloud", "az", "vault", "op", "doctl", "heroku", "flyctl"), "uses credentials"),
    **dict.fromkeys(("ssh", "scp", "sftp", "ftp", "telnet", "ssh-copy-id"), "connects to another machine"),
    **dict.fromkeys(("uvx", "easy_install"), "installs packages"),
    **dict.fromkeys(("git-filter-repo", "bfg"), "rewrites git history"),
}  # fmt: skip

_GIT_VALUE_OPTIONS: Final = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path"})


def risk_of_sequence(script: str, parts: Script) -> str | None:
    """What only several commands together tell; the reason, or None."""
    if not parts.whole:
        return "is too long or too deeply nested to look through"
    downloaded: set[str] = set()
    for command in parts.commands:
        if reason := risky_traffic.runs_download(command, downloaded):
            return reason
        downloaded |= risky_traffic.downloads(command)
    if _FORK_BOMB.search(script):
        return "multiplies processes without end"
    return None


def risk_of(command: Command) -> str | None:
    """Why one simple command is risky, by itself; None when it is not."""
    for check in _CHECKS:
        if reason := check(command):
            return reason
    return None


def _elevates(command: Command) -> str | None:
    return "runs as another user" if command.elevated else None


def _is_known(command: Command) -> str | None:
    return _ALWAYS.get(command.name) or ("destroys data" if command.name.startswith("mkfs.") else None)


def _deletes(command: Command) -> str | None:
    name = command.name
    if name == "rm" and command.has("rR", "--recursive"):
        targets = command.operands
        if any(risky_paths.wide(target, command.cwd) for target in targets):
            return "deletes widely"
        if not targets and "xargs" in {each.name for each in command.piped}:
            return "deletes widely"
    if name == "rm" and any(target in {"*", "./*", "/*"} for target in command.operands):
        return "deletes widely"
    if name == "find" and "-delete" in command.words:
        narrowed = any(
            word in {"-name", "-iname", "-path", "-ipath", "-regex", "-empty", "-newer"} for word in command.words
        )
        return None if narrowed else "deletes widely"
    if name == "dd" and any(
        word.startswith("of=/dev/") and not risky_paths.HARMLESS_DEVICES.fullmatch(word[3:]) for word in command.words
    ):
        return "destroys data"
    if name == "rsync" and any(word.startswith("--delete") for word in command.words):
        return "deletes widely"
    if name in {"docker", "podman"} and {"prune", "rm"} & set(command.words[2:3]) and "-f" in command.words:
        return "deletes widely"
    if name in {"psql", "mysql", "mariadb", "sqlite3", "duckdb"}:
        said = " ".join([*command.words, command.stdin or ""])
        if re.search(r"\b(drop\s+(table|database|schema)|truncate\s+table)\b", said, re.IGNORECASE):
            return "deletes data of a database"
    return None


def _git(command: Command) -> str | None:
    if command.name != "git":
        return _forge(command) if command.name in {"gh", "glab", "hub"} else None
    words = list(command.words[1:])
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in _GIT_VALUE_OPTIONS and words:
            words.pop(0)
    if not words:
        return None
    verb, rest = words[0], words[1:]
    flags = {word.partition("=")[0] for word in rest if word.startswith("-")}
    letters = "".join(word[1:] for word in rest if re.fullmatch(r"-[a-zA-Z]+", word))
    if verb in {"push", "send-pack", "send-email"}:
        return "sends commits to another repository"
    if verb in {"filter-branch", "filter-repo", "replace", "update-ref", "prune"} or (
        verb == "rebase" and not flags & {"--abort"}
    ):
        return "rewrites git history"
    if (verb == "commit" and "--amend" in flags) or (verb == "reflog" and rest[:1] in (["expire"], ["delete"])):
        return "rewrites git history"
    if (verb == "reset" and flags & {"--hard", "--merge", "--keep"}) or (verb == "gc" and "--prune" in flags):
        return "throws away work that git has not kept"
    if verb == "clean" and ("f" in letters or "--force" in flags) and not ("n" in letters or "--dry-run" in flags):
        return "throws away work that git has not kept"
    if verb == "stash" and rest[:1] in (["drop"], ["clear"]):
        return "throws away work that git has not kept"
    if verb in {"checkout", "restore"} and {".", ":/", "*"} & set(rest) and "--staged" not in flags:
        return "throws away work that git has not kept"
    if (verb == "branch" and "D" in letters) or (verb == "tag" and "d" in letters):
        return "rewrites git history"
    if verb == "config" and flags & {"--global", "--system"}:
        return "changes the machine, not the workspace"
    if verb == "credential":
        return "uses credentials"
    return None


def _forge(command: Command) -> str | None:
    pair = command.words[1:3]
    if pair[:1] == ("auth",):
        return "uses credentials"
    if len(pair) == 2 and pair[1] in {"create", "merge", "delete", "close", "edit", "upload", "comment", "review"}:
        return "publishes to a forge"
    return "publishes to a forge" if pair[:1] == ("api",) else None


def _permissions(command: Command) -> str | None:
    if command.name in {"chmod", "chown", "chgrp", "setfacl", "chattr"}:
        if command.has("R", "--recursive"):
            return "changes permissions recursively"
        if command.name == "chmod" and any(
            re.fullmatch(r"[ugoa]*\+[rwx]*s[rwx]*|[2467][0-7]{3}", word) for word in command.words
        ):
            return "makes a program run as its owner"
    return None


def _kills(command: Command) -> str | None:
    if command.name == "fuser" and command.has("k", "--kill"):
        return "kills processes"
    if command.name != "kill" or {"-l", "-L", "-0"} & set(command.words[1:2]):
        return None
    # What the script itself started is its own: jobs, $!, the content of a pid file.
    for word in command.operands[1 if command.words[1:2] == ("-s",) else 0 :]:
        if re.fullmatch(r"\d+", word):
            return "kills processes"
    return "kills processes" if "-1" in command.words[2:] else None


def _credentials(command: Command) -> str | None:
    if any(_SECRET_NAME.search(name.upper()) for name in command.variables) and command.name not in {"test", "[", "[["}:
        return "uses credentials"
    named = [*command.words[1:], *command.reads, *command.writes]
    if any(risky_paths.CREDENTIALS.search(word.removeprefix("~/").removeprefix("@")) for word in named):
        return "touches credentials"
    if command.name == "printenv" and any(_SECRET_NAME.search(word.upper()) for word in command.words[1:]):
        return "uses credentials"
    return None


_CALLS: Final = re.compile(
    r"(?:system|popen|Popen|run|call|check_call|check_output|getoutput|execSync|exec|spawn|spawnSync|shell_exec|`)\s*\(\s*"
    r"(\[[^\]\n]{0,2000}\]|'[^'\n]{0,2000}'|\"[^\"\n]{0,2000}\")"
)
_REMOVES: Final = re.compile(r"(?:rmtree|rm_rf|rm_r|rmSync|removeSync|rimraf)\s*\(?\s*['\"]([^'\"\n]{0,500})['\"]")
_OPENS: Final = re.compile(r"open\(\s*['\"]([^'\"\n]{1,500})['\"]\s*,\s*['\"][wax]")


def _inline_code(command: Command) -> str | None:
    """Commands and deletions spelt out in code that an interpreter is given on the command line or its standard input."""
    if not risky_traffic.INTERPRETERS.fullmatch(command.name):
        return None
    code = command.stdin or ""
    words = command.words
    code += "\n".join(
        words[index + 1] for index, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-zA-Z]*[ceEr]", word)
    )
    if any(risky_paths.wide(match[1], command.cwd) for match in _REMOVES.finditer(code)):
        return "deletes widely"
    for match in _CALLS.finditer(code):
        said = match[1]
        parts = re.findall(r"'([^']*)'|\"([^\"]*)\"", said) if said.startswith("[") else []
        script = " ".join(first or second for first, second in parts) if parts else said[1:-1]
        for inner in take_apart(script).commands:
            if not risky_traffic.INTERPRETERS.fullmatch(inner.name) and (reason := risk_of(inner)):
                return reason
    for match in _OPENS.finditer(code):
        if not risky_paths.inside(resolved := risky_paths.resolve(match[1], command.cwd)):
            return f"writes outside the workspace ({resolved[:80]})"
    return None


_CHECKS: Final[tuple[Callable[[Command], str | None], ...]] = (
    _elevates,
    _is_known,
    _deletes,
    _git,
    _permissions,
    risky_traffic.packages,
    risky_traffic.pipes_download,
    risky_traffic.sends,
    _kills,
    _credentials,
    risky_paths.writes_outside,
    _inline_code,
)
