"""Which paths a command or a tool should not touch unasked: outside the task's own folders, credentials, whole workspaces."""

import posixpath
import re
from collections.abc import Iterable
from typing import Final

from journeyman.agents.shell_commands import Command, Word, unanchored

WORKSPACE: Final = "/workspace"
OWN: Final = (WORKSPACE, "/artifacts", "/tmp", "/var/tmp")  # noqa: S108  the sandbox's own
HARMLESS_DEVICES: Final = re.compile(r"/dev/(null|stdout|stderr|stdin|tty|zero|random|urandom|full|fd/\d+|shm(/.*)?)")
CREDENTIALS: Final = re.compile(
    r"(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker/config\.json|\.config/(gh|gcloud)|\.netrc|\.pypirc|\.npmrc|"
    r"\.git-credentials|\.pgpass|id_(rsa|dsa|ecdsa|ed25519)|credentials\.json)(/|$)"
    r"|^/etc/(shadow|gshadow|sudoers)|^/proc/(\d+|self|thread-self)/environ|^/run/secrets|serviceaccount/token"
)
_SAMPLES: Final = (
    *(
        home + path
        for home in ("~/", "/root" + "/", "/home/user/")
        for path in (".ssh/id_rsa", ".ssh/id_ed25519", ".aws/credentials", ".netrc", ".npmrc", ".git-credentials")
    ),
    *("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/proc/self/environ", "/proc/1/environ", "/run/secrets/token"),
)
"""Files that a pattern of the shell must not match."""
_NETWORK: Final = re.compile(r"/dev/(tcp|udp)/")


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
    """Whether this is a place that belongs to the task."""
    return any(resolved == own or resolved.startswith(own + "/") for own in OWN) or bool(
        HARMLESS_DEVICES.fullmatch(resolved)
    )


_WIDE: Final = frozenset({"", "/", ".", "..", "*", "./*", "../*", ".*", "./", "../", "~", "~/", "~/*", ".git", ".git/"})


def wide(target: str, cwd: str) -> bool:
    """Whether deleting this deletes a whole workspace, home or machine. An unknown part may be empty."""
    if isinstance(target, Word) and target.prefix is not None:
        target = target.prefix or ("" if re.match(r"\$(\{?\w+[^}]*\}?|\w+)(/\*?)?$", target) else target)
    if target in _WIDE or re.match(r"(~|\$\{?(HOME|PWD|OLDPWD)\}?)(/\*?)?$", target):
        return True
    resolved = resolve(target, cwd)
    bare = resolved.rstrip("*").rstrip("/") or "/"
    return bare in {*OWN, "/"} or posixpath.dirname(bare) == "/" or bare.endswith("/.git")


def names_credentials(word: str) -> bool:
    """Whether an argument is, or its pattern matches, a file that holds credentials."""
    path = word.removeprefix("@")
    if CREDENTIALS.search(path.removeprefix("~/")) or CREDENTIALS.search(path.partition("=")[2]):
        return True
    if not (isinstance(word, Word) and word.glob) or not path.startswith(("/", "~")):
        return False
    parts = [_as_expression(part) for part in posixpath.normpath(path).split("/")[:12]]
    # A pattern for a folder reaches what is below it.
    expression = re.compile("/".join(parts) + "(/.*)?")
    return any(expression.fullmatch(sample) for sample in _SAMPLES)


def _as_expression(part: str) -> str:
    """One part of a shell pattern; a bracket expression counts as any character."""
    part = re.sub(r"\[[^\]]*\]", "?", re.sub(r"\*+", "*", part[:255]))
    hidden = "" if part.startswith(".") else r"(?!\.)"
    return hidden + re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")


_WRITERS: Final = frozenset(
    {
        "rm",
        "rmdir",
        "unlink",
        "mkdir",
        "touch",
        "truncate",
        "tee",
        "chmod",
        "chown",
        "chgrp",
        "shred",
        "mkfifo",
        "split",
    }
)
_TO_LAST: Final = frozenset({"cp", "mv", "ln", "install", "rsync", "scp"})
_MODE_FIRST: Final = frozenset({"chmod", "chown", "chgrp"})
_NAMED: Final = {
    **dict.fromkeys(("cp", "mv", "ln", "install"), ("-t", "--target-directory")),
    "tar": ("-C", "--directory"),
    "unzip": ("-d",),
    "curl": ("-o", "--output", "--output-dir", "-c", "--cookie-jar", "-D", "--dump-header"),
    "wget": ("-O", "-P", "--output-document", "--directory-prefix"),
    "sort": ("-o", "--output"),
    "patch": ("-d", "-o"),
    "git": ("-C", "--git-dir", "--work-tree", "--output"),
    "find": ("-fprint", "-fprintf", "-fls", "-fprint0"),
}
"""Options that name what is written."""


def _targets(command: Command) -> Iterable[str]:
    """Paths that the command writes or removes."""
    yield from command.writes
    operands = command.operands
    name = command.name
    yield from command.after(*_NAMED.get(name, ()))
    if name in _WRITERS:
        yield from operands[1:] if name in _MODE_FIRST and "--reference" not in command.text else operands
    elif name in _TO_LAST and operands:
        yield operands[-1]
        if name == "mv":
            yield from operands[:-1]
    elif name == "dd":
        yield from (
            Word(word[3:], getattr(word, "prefix", None) and "") for word in command.words if word.startswith("of=")
        )
    elif name in {"sed", "perl", "ruby"} and edits_in_place(command):
        yield from operands if name != "sed" or command.after("-e", "-f", "--expression") else operands[1:] or operands


def edits_in_place(command: Command) -> bool:
    """Whether ``sed`` or an interpreter changes the files that it is given."""
    return any(
        word.startswith(("-i", "--in-place")) or re.fullmatch(r"-[nErspl0]+i\S*", word) for word in command.words[1:]
    )


def writes_outside(command: Command) -> str | None:
    """Writes or removes what is not the task's own; the reason, or None."""
    if any(_NETWORK.match(path) for path in (*command.writes, *command.reads)):
        return "sends data to another machine"
    for target in _targets(command):
        if not target or target == "-" or target.startswith(">("):
            continue
        if command.name == "sed" and not target.startswith(("/", "~", "..", "$")):
            continue
        resolved = resolve(target, command.cwd)
        if command.name == "sed" and re.match(r"/.*/[dpIsg]*$", target):
            continue
        if resolved.startswith("$") or unanchored(target):
            return "writes to or removes a path that is known only when it runs"
        if not inside(resolved):
            return f"writes outside the workspace ({resolved[:80]})"
    return None
