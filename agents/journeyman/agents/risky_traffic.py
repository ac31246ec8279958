"""What a command takes from or gives to the world outside: packages, downloads that are run, data that is sent."""

import re
from typing import Final

from journeyman.agents.shell_commands import SHELLS, Command
from journeyman.agents.shell_words import take_apart

_DOWNLOADERS: Final = frozenset({"curl", "wget", "fetch", "aria2c", "http", "https", "lynx", "nc", "ncat", "socat"})
_DECODERS: Final = frozenset({"base64", "base32", "xxd", "openssl", "gunzip", "zcat", "uudecode", "rev", "tr"})
INTERPRETERS: Final = re.compile(r"(python|pypy|perl|ruby|node|nodejs|php|lua|deno|bun|pwsh)[\d.]*")
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


def packages(command: Command) -> str | None:
    """Installs, removes or publishes packages, or changes what runs elsewhere. All functions here give the reason, or None."""
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
    return bool(INTERPRETERS.fullmatch(name)) and (len(words) == 1 or words[1] in {"-", "-c", "-e", "/dev/stdin"})


def pipes_download(command: Command) -> str | None:
    """Runs what it, or what is piped into it, has downloaded or decoded."""
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


def downloads(command: Command) -> set[str]:
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


def runs_download(command: Command, downloaded: set[str]) -> str | None:
    """Runs one of the files that earlier commands have fetched."""
    if not downloaded or not command.words:
        return None
    runs = [command.words[0]] if "/" in command.words[0] else []
    if command.name in SHELLS or command.name in {"source", "."} or INTERPRETERS.fullmatch(command.name):
        runs += [word for word in command.words[1:] if not word.startswith("-")][:1]
    if any(word.removeprefix("./") in downloaded for word in runs):
        return "runs what it downloads or decodes"
    return None


def sends(command: Command) -> str | None:
    """Sends data to another machine."""
    if command.name == "rsync" and any(re.match(r"[\w.@-]+:", word) for word in command.operands):
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
