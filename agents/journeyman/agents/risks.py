"""Which tool calls look dangerous enough to show them to a person first.

A heuristic that spares people from approving every ``ls``, and nothing more: it is *not* a security border. It reads what a
command says, follows quotes, lists, wrappers, ``sh -c`` and simple variables, and cannot know what a program, a script in a
file or an encoded text will do. What an agent can reach at all is decided by the sandbox. It leans towards asking where
something is rarely meant, and towards silence where agents do it all day.
"""

import posixpath
import re
from collections.abc import Callable, Iterable
from typing import Final

from journeyman.agents.shell_commands import SHELLS, Command
from journeyman.agents.shell_words import Script, take_apart

WORKSPACE: Final = "/workspace"
_OWN: Final = (WORKSPACE, "/artifacts", "/tmp", "/var/tmp")  # noqa: S108  the sandbox's own
_HARMLESS_DEVICES: Final = re.compile(r"/dev/(null|stdout|stderr|stdin|tty|zero|random|urandom|full|fd/\d+|shm(/.*)?)")
_CREDENTIALS: Final = re.compile(
    r"(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker/config\.json|\.config/(gh|gcloud)|\.netrc|\.pypirc|\.npmrc|"
    r"\.git-credentials|\.pgpass|id_(rsa|dsa|ecdsa|ed25519)|credentials\.json)(/|$)"
    r"|^/etc/(shadow|gshadow|sudoers)|^/proc/(\d+|self)/environ|^/run/secrets|serviceaccount/token"
)
_SECRET_NAME: Final = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY)(_|$)|(API|PRIVATE|ACCESS|SECRET)_?KEY"
)
_FORK_BOMB: Final = re.compile(r":\s*\(\)\s*\{[^}]{0,100}:\s*\|\s*:")
_DOWNLOADERS: Final = frozenset({"curl", "wget", "fetch", "aria2c", "http", "https", "lynx", "nc", "ncat", "socat"})
_DECODERS: Final = frozenset({"base64", "base32", "xxd", "openssl", "gunzip", "zcat", "uudecode", "rev", "tr"})
_INTERPRETERS: Final = re.compile(r"(python|pypy|perl|ruby|node|nodejs|php|lua|deno|bun|pwsh)[\d.]*")
_PYTHON: Final = re.compile(r"(python|pypy)[\d.]*")
_PIP: Final = re.compile(r"pip[\d.]*")

_INSTALLS: Final[dict[str, frozenset[str]]] = {
    "uv": frozenset({"add", "remove", "sync", "publish"}),
    "poetry": frozenset({"add", "install", "update", "remove", "publish"}),
    "pdm": frozenset({"add", "install", "update", "remove", "publish"}),
    "pipx": frozenset({"install", "run", "inject", "upgrade", "uninstall"}),
    "conda": frozenset({"install", "create", "update", "remove"}),
    "mamba": frozenset({"install", "create", "update", "remove"}),
    "npm": frozenset({"install", "i", "ci", "add", "update", "uninstall", "publish", "link", "unpublish"}),
    "pnpm": frozenset({"install", "i", "add", "update", "remove", "publish", "dlx"}),
    "yarn": frozenset({"install", "add", "upgrade", "remove", "publish", "dlx", "up"}),
    "bun": frozenset({"install", "i", "add", "remove", "publish", "x"}),
    "gem": frozenset({"install", "update", "uninstall", "push"}),
    "bundle": frozenset({"install", "update", "add"}),
    "cargo": frozenset({"install", "add", "remove", "publish", "yank"}),
    "go": frozenset({"install", "get"}),
    "composer": frozenset({"install", "require", "update", "remove"}),
    "apt": frozenset({"install", "remove", "purge", "upgrade", "dist-upgrade", "full-upgrade", "autoremove"}),
    "apt-get": frozenset({"install", "remove", "purge", "upgrade", "dist-upgrade", "autoremove"}),
    "aptitude": frozenset({"install", "remove", "purge", "upgrade"}),
    "yum": frozenset({"install", "remove", "update", "erase"}),
    "dnf": frozenset({"install", "remove", "update", "upgrade"}),
    "apk": frozenset({"add", "del", "upgrade"}),
    "pacman": frozenset({"-S", "-R", "-U", "-Syu", "-Sy", "-Rns"}),
    "brew": frozenset({"install", "upgrade", "uninstall"}),
    "snap": frozenset({"install", "remove"}),
    "dpkg": frozenset({"-i", "--install", "-r", "-P", "--purge"}),
    "rpm": frozenset({"-i", "-U", "-e", "-ivh", "-Uvh"}),
    "twine": frozenset({"upload"}),
    "docker": frozenset({"push", "login"}),
    "podman": frozenset({"push", "login"}),
    "helm": frozenset({"install", "upgrade", "uninstall", "rollback"}),
    "kubectl": frozenset({"apply", "delete", "create", "replace", "patch", "scale", "drain", "exec"}),
    "terraform": frozenset({"apply", "destroy", "import"}),
    "tofu": frozenset({"apply", "destroy", "import"}),
}
"""Package managers and the like: the subcommands that install, remove or publish."""

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
    """What only several commands together tell."""
    if not parts.whole:
        return "is too long or too deeply nested to look through"
    downloaded: set[str] = set()
    for command in parts.commands:
        if reason := _runs_download(command, downloaded):
            return reason
        downloaded |= _downloads(command)
    if _FORK_BOMB.search(script):
        return "multiplies processes without end"
    return None


def risk_of_path(path: str, *, writes: bool) -> str | None:
    """The same for a file that a tool reads or writes."""
    resolved = _resolve(path, WORKSPACE)
    if _CREDENTIALS.search(resolved):
        return "touches credentials"
    if not writes:
        return None
    if not _inside(resolved):
        return f"writes outside the workspace ({resolved[:80]})"
    return "changes git's own files" if "/.git/" in resolved + "/" else None


def risk_of(command: Command) -> str | None:
    """Why one simple command is risky, by itself."""
    for check in _CHECKS:
        if reason := check(command):
            return reason
    return None


def _resolve(path: str, cwd: str) -> str:
    """The absolute, normal form of a path; a home folder or an unknown variable in front stays as it is written."""
    if path.startswith(("~", "$")):
        return path
    base = cwd if cwd.startswith(("/", "~", "$")) else f"{WORKSPACE}/{cwd}"
    joined = path if path.startswith("/") else f"{base}/{path}"
    if joined.startswith(("~", "$")):
        return joined
    resolved = posixpath.normpath(joined)
    return "/" + resolved.lstrip("/") if resolved.startswith("//") else resolved


def _inside(resolved: str) -> bool:
    """Whether this is a place that belongs to the task. An unknown variable gets the benefit of the doubt."""
    if resolved.startswith("$"):
        return not re.match(r"\$\{?(HOME|OLDPWD)\b", resolved)
    return any(resolved == own or resolved.startswith(own + "/") for own in _OWN) or bool(
        _HARMLESS_DEVICES.fullmatch(resolved)
    )


def _operands(command: Command) -> list[str]:
    """The arguments that are no options."""
    words = list(command.words[1:])
    if "--" in words:
        at = words.index("--")
        return [word for word in words[:at] if not word.startswith("-")] + words[at + 1 :]
    return [word for word in words if not word.startswith("-") or word == "-"]


def _has(command: Command, short: str = "", *long: str) -> bool:
    """Whether one of the single letters or long options is given, also within ``-rf``."""
    for word in command.words[1:]:
        if word == "--":
            return False
        if word.startswith("--"):
            if word.partition("=")[0] in long:
                return True
        elif word.startswith("-") and any(letter in word[1:] for letter in short):
            return True
    return False


def _elevates(command: Command) -> str | None:
    return "runs as another user" if command.elevated else None


def _is_known(command: Command) -> str | None:
    return _ALWAYS.get(command.name) or ("destroys data" if command.name.startswith("mkfs.") else None)


_WIDE: Final = frozenset({"", "/", ".", "..", "*", "./*", "../*", ".*", "./", "../", "~", "~/", "~/*", ".git", ".git/"})


def _wide(target: str, cwd: str) -> bool:
    """Whether deleting this deletes a whole workspace, home or machine."""
    if target in _WIDE or re.match(r"(~|\$\{?(HOME|PWD|OLDPWD)\}?)(/\*?)?$", target):
        return True
    if re.match(r"\$(\{?\w+[^}]*\}?|\w+)/(\*|$)", target):
        return True  # an empty variable makes this the root
    resolved = _resolve(target, cwd)
    bare = resolved.rstrip("*").rstrip("/") or "/"
    return bare in {*_OWN, "/"} or posixpath.dirname(bare) == "/" or bare.endswith("/.git")


def _deletes(command: Command) -> str | None:
    name = command.name
    if name == "rm" and _has(command, "rR", "--recursive"):
        targets = _operands(command)
        if any(_wide(target, command.cwd) for target in targets):
            return "deletes widely"
        if not targets and "xargs" in {each.name for each in command.piped}:
            return "deletes widely"
    if name == "rm" and any(target in {"*", "./*", "/*"} for target in _operands(command)):
        return "deletes widely"
    if name == "find" and "-delete" in command.words:
        narrowed = any(
            word in {"-name", "-iname", "-path", "-ipath", "-regex", "-empty", "-newer"} for word in command.words
        )
        return None if narrowed else "deletes widely"
    if name == "dd" and any(
        word.startswith("of=/dev/") and not _HARMLESS_DEVICES.fullmatch(word[3:]) for word in command.words
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
        return {"gh": _forge, "glab": _forge, "hub": _forge}.get(command.name, lambda _: None)(command)
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
        if _has(command, "R", "--recursive"):
            return "changes permissions recursively"
        if command.name == "chmod" and any(
            re.fullmatch(r"[ugoa]*\+[rwx]*s[rwx]*|[2467][0-7]{3}", word) for word in command.words
        ):
            return "makes a program run as its owner"
    return None


def _packages(command: Command) -> str | None:
    name, words = command.name, command.words
    if _PYTHON.fullmatch(name) and "-m" in words[1:-1]:
        at = words.index("-m")
        name, words = words[at + 1], words[at + 1 :]
    if name == "uv" and words[1:2] == ("pip",):
        name, words = "pip", words[1:]
    if name == "uv" and words[1:2] == ("tool",):
        name, words = "pipx", words[1:]
    verbs = [word for word in words[1:] if not word.startswith("-")]
    verb = verbs[0] if verbs else ""
    if _PIP.fullmatch(name):
        return "installs or removes packages" if verb in {"install", "uninstall", "download"} else None
    if name == "yarn" and not verb:
        return None if "--version" in words else "installs or removes packages"
    if name in {"npx", "bunx"} and {"-y", "--yes"} & set(words):
        return "downloads and runs a package"
    known = _INSTALLS.get(name)
    if known is None:
        return None
    chosen = words[1:2] if name in {"pacman", "dpkg", "rpm"} else (verb,)
    if not chosen or chosen[0] not in known:
        return None
    if chosen[0] in {"publish", "push", "upload", "unpublish", "yank"}:
        return "publishes"
    if name in {"helm", "kubectl", "terraform", "tofu", "docker", "podman"}:
        return "changes what runs elsewhere"
    return "installs or removes packages"


def _runs_code(command: Command) -> bool:
    """Whether it is an interpreter that runs what it is given, and not a file."""
    name, words = command.name, command.words
    if name in SHELLS or name in {"eval", "source", "."}:
        return True
    return bool(_INTERPRETERS.fullmatch(name)) and (len(words) == 1 or words[1] in {"-", "-c", "-e", "/dev/stdin"})


def _pipes_download(command: Command) -> str | None:
    said = "runs what it downloads or decodes"
    fetched = any(
        each.name in _DOWNLOADERS | _DECODERS
        for script in command.substitutions
        for each in take_apart(script).commands
    )
    first = command.words[0] if command.words else ""
    if first.startswith("$(") and fetched:
        return said
    if not _runs_code(command):
        return None
    if fetched:
        return said
    operands = [word for word in command.words[1:] if not word.startswith("-")]
    reads_input = not operands or operands == ["/dev/stdin"] or "-s" in command.words or "-" in command.words
    if reads_input and any(each.name in _DOWNLOADERS | _DECODERS for each in command.piped):
        return said
    return None


def _downloads(command: Command) -> set[str]:
    """Files that the command fetches."""
    if command.name not in {"curl", "wget"}:
        return set()
    words = command.words
    named = {
        words[index + 1]
        for index, word in enumerate(words[:-1])
        if word in {"-o", "-O", "--output", "--output-document"} and not words[index + 1].startswith("-")
    }
    links = [word for word in words[1:] if "://" in word]
    named |= {link.rpartition("/")[2].partition("?")[0] for link in links}
    named |= set(command.writes)
    return {name.removeprefix("./") for name in named if name}


def _runs_download(command: Command, downloaded: set[str]) -> str | None:
    if not downloaded or not command.words:
        return None
    runs = [command.words[0]] if "/" in command.words[0] else []
    if command.name in SHELLS or command.name in {"source", "."} or _INTERPRETERS.fullmatch(command.name):
        runs += [word for word in command.words[1:] if not word.startswith("-")][:1]
    if any(word.removeprefix("./") in downloaded for word in runs):
        return "runs what it downloads or decodes"
    return None


def _sends(command: Command) -> str | None:
    if command.name == "rsync" and any(re.match(r"[\w.@-]+:", word) for word in _operands(command)):
        return "connects to another machine"
    if command.name not in {"curl", "wget", "http", "https", "xh"}:
        return None
    hosts = [match[1] for word in command.words[1:] if (match := re.match(r"(?:https?://)?([\w.\[\]:-]+)", word))]
    near = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\]|0\.0\.0\.0)(:\d+)?")
    if any(near.match(host) for host in hosts):
        return None
    sending = (
        "-d",
        "--data",
        "-F",
        "--form",
        "-T",
        "--upload-file",
        "--json",
        "--post-data",
        "--post-file",
        "--body-file",
    )
    for index, word in enumerate(command.words):
        if word.startswith(sending) and not word.startswith("--delegation"):
            return "sends data to another machine"
        method = command.words[index + 1] if word in {"-X", "--request"} and index + 1 < len(command.words) else ""
        method = method or (
            word.removeprefix("-X") if re.fullmatch(r"-X[A-Z]+", word) else word.removeprefix("--method=")
        )
        if method.upper() in {"POST", "PUT", "DELETE", "PATCH"}:
            return "sends data to another machine"
    return None


_WRITERS: Final = frozenset(
    {"rm", "rmdir", "unlink", "mkdir", "touch", "truncate", "tee", "chmod", "chown", "chgrp", "shred", "mkfifo"}
)
_TO_LAST: Final = frozenset({"cp", "mv", "ln", "install", "rsync", "scp"})


def _targets(command: Command) -> Iterable[str]:
    """Paths that the command writes or removes."""
    yield from command.writes
    operands = _operands(command)
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


def _outside(command: Command) -> str | None:
    for target in _targets(command):
        if not target or target == "-" or target.startswith(("$(", "<(", ">(")):
            continue
        if command.name in {"chmod", "chown"} and re.fullmatch(r"[0-7]{3,4}|[ugoa,+=rwxXst-]+", target):
            continue
        if command.name == "sed" and not target.startswith(("/", "~", "..")):
            continue
        resolved = _resolve(target, command.cwd)
        if command.name == "sed" and re.match(r"/.*/[dpIsg]*$", target):
            continue
        if not _inside(resolved):
            return f"writes outside the workspace ({resolved[:80]})"
    return None


def _kills(command: Command) -> str | None:
    if command.name == "fuser" and _has(command, "k", "--kill"):
        return "kills processes"
    if command.name != "kill" or {"-l", "-L", "-0"} & set(command.words[1:2]):
        return None
    # What the script itself started is its own: jobs, $!, the content of a pid file.
    for word in _operands(command)[1 if command.words[1:2] == ("-s",) else 0 :]:
        if re.fullmatch(r"\d+", word):
            return "kills processes"
    return "kills processes" if "-1" in command.words[2:] else None


def _credentials(command: Command) -> str | None:
    if any(_SECRET_NAME.search(name.upper()) for name in command.variables) and command.name not in {"test", "[", "[["}:
        return "uses credentials"
    named = [*command.words[1:], *command.reads, *command.writes]
    if any(_CREDENTIALS.search(word.removeprefix("~/").removeprefix("@")) for word in named):
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
    if not _INTERPRETERS.fullmatch(command.name):
        return None
    code = command.stdin or ""
    words = command.words
    code += "\n".join(
        words[index + 1] for index, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-zA-Z]*[ceEr]", word)
    )
    if any(_wide(match[1], command.cwd) for match in _REMOVES.finditer(code)):
        return "deletes widely"
    for match in _CALLS.finditer(code):
        said = match[1]
        parts = re.findall(r"'([^']*)'|\"([^\"]*)\"", said) if said.startswith("[") else []
        script = " ".join(first or second for first, second in parts) if parts else said[1:-1]
        for inner in take_apart(script).commands:
            if not _INTERPRETERS.fullmatch(inner.name) and (reason := risk_of(inner)):
                return reason
    for match in _OPENS.finditer(code):
        if not _inside(resolved := _resolve(match[1], command.cwd)):
            return f"writes outside the workspace ({resolved[:80]})"
    return None


_CHECKS: Final[tuple[Callable[[Command], str | None], ...]] = (
    _elevates,
    _is_known,
    _deletes,
    _git,
    _permissions,
    _packages,
    _pipes_download,
    _sends,
    _kills,
    _credentials,
    _outside,
    _inline_code,
)
