"""Which paths a command or a tool should not touch unasked: outside the task's own folders, credentials, whole workspaces."""

import posixpath
import re
from collections.abc import Iterable
from typing import Final

from journeyman.agents.shell_commands import Command

WORKSPACE: Final = "/workspace"
_OWN: Final = (WORKSPACE, "/artifacts", "/tmp", "/var/tmp")  # noqa: S108  the sandbox's own
HARMLESS_DEVICES: Final = re.compile(r"/dev/(null|stdout|stderr|stdin|tty|zero|random|urandom|full|fd/\d+|shm(/.*)?)")
CREDENTIALS: Final = re.compile(
    r"(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker/config\.json|\.config/(gh|gcloud)|\.netrc|\.pypirc|\.npmrc|"
    r"\.git-credentials|\.pgpass|id_(rsa|dsa|ecdsa|ed25519)|credentials\.json)(/|$)"
    r"|^/etc/(shadow|gshadow|sudoers)|^/proc/(\d+|self)/environ|^/run/secrets|serviceaccount/token"
)


def risk_of_path(path: str, *, writes: bool) -> str | None:
    """Why it is risky that a tool reads or writes the file; None when it is not."""
    resolved = resolve(path, WORKSPACE)
    if CREDENTIALS.search(resolved):
        return "touches credentials"
    if not writes:
        return None
    if not inside(resolved):
        return f"writes outside the workspace ({resolved[:80]})"
    return "changes git's own files" if "/.git/" in resolved + "/" else None


def resolve(path: str, cwd: str) -> str:
    """The absolute, normal form of a path; a home folder or an unknown variable in front stays as it is written."""
    if path.startswith(("~", "$")):
        return path
    base = cwd if cwd.startswith(("/", "~", "$")) else f"{WORKSPACE}/{cwd}"
    joined = path if path.startswith("/") else f"{base}/{path}"
    if joined.startswith(("~", "$")):
        return joined
    resolved = posixpath.normpath(joined)
    return "/" + resolved.lstrip("/") if resolved.startswith("//") else resolved


def inside(resolved: str) -> bool:
    """Whether this is a place that belongs to the task. An unknown variable gets the benefit of the doubt."""
    if resolved.startswith("$"):
        return not re.match(r"\$\{?(HOME|OLDPWD)\b", resolved)
    return any(resolved == own or resolved.startswith(own + "/") for own in _OWN) or bool(
        HARMLESS_DEVICES.fullmatch(resolved)
    )


_WIDE: Final = frozenset({"", "/", ".", "..", "*", "./*", "../*", ".*", "./", "../", "~", "~/", "~/*", ".git", ".git/"})


def wide(target: str, cwd: str) -> bool:
    """Whether deleting this deletes a whole workspace, home or machine."""
    if target in _WIDE or re.match(r"(~|\$\{?(HOME|PWD|OLDPWD)\}?)(/\*?)?$", target):
        return True
    if re.match(r"\$(\{?\w+[^}]*\}?|\w+)/(\*|$)", target):
        return True  # an empty variable makes this the root
    resolved = resolve(target, cwd)
    bare = resolved.rstrip("*").rstrip("/") or "/"
    return bare in {*_OWN, "/"} or posixpath.dirname(bare) == "/" or bare.endswith("/.git")


_WRITERS: Final = frozenset(
    {"rm", "rmdir", "unlink", "mkdir", "touch", "truncate", "tee", "chmod", "chown", "chgrp", "shred", "mkfifo"}
)
_TO_LAST: Final = frozenset({"cp", "mv", "ln", "install", "rsync", "scp"})


def _targets(command: Command) -> Iterable[str]:
    """Paths that the command writes or removes."""
    yield from command.writes
    operands = command.operands
    name = command.name
    if name in _WRITERS:
        yield from operands[1:] if name in {"chmod", "chown", "chgrp"} else operands
    elif name in _TO_LAST and operands:
        yield operands[-1]
        if name == "mv":
            yield from operands[:-1]
        words = command.words
        yield from (words[index + 1] for index, word in enumerate(words[:-1]) if word in {"-t", "--target-directory"})
    elif name == "dd":
        yield from (word[3:] for word in command.words if word.startswith("of="))
    elif name == "sed" and any(
        word.startswith(("-i", "--in-place")) or re.fullmatch(r"-[nErs]+i\S*", word) for word in command.words
    ):
        yield from operands[1:] or operands
    elif name in {"tar", "unzip"}:
        words, option = command.words, "-C" if name == "tar" else "-d"
        yield from (words[index + 1] for index, word in enumerate(words[:-1]) if word == option)
    elif name in {"curl", "wget"}:
        words = command.words
        yield from (words[index + 1] for index, word in enumerate(words[:-1]) if word in {"-o", "--output", "-P"})


def writes_outside(command: Command) -> str | None:
    """Writes or removes what is not the task's own; the reason, or None."""
    for target in _targets(command):
        if not target or target == "-" or target.startswith(("$(", "<(", ">(")):
            continue
        if command.name in {"chmod", "chown"} and re.fullmatch(r"[0-7]{3,4}|[ugoa,+=rwxXst-]+", target):
            continue
        if command.name == "sed" and not target.startswith(("/", "~", "..")):
            continue
        resolved = resolve(target, command.cwd)
        if command.name == "sed" and re.match(r"/.*/[dpIsg]*$", target):
            continue
        if not inside(resolved):
            return f"writes outside the workspace ({resolved[:80]})"
    return None
