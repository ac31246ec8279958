"""Which server a command talks to, and with which key."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from journeyman.apps.exits import CommandError, Exit

STACK_FILE = "stack.json"
KEY_FILE = "admin.key"
DEMO_KEY_FILE = "demo.key"
"""Key of the project that the demos run in, beside the first one, so that what they teach agents stays there."""


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    api_key: str
    source: str
    """Where the address comes from, for messages: an option, the environment, or a data directory."""
    directory: Path | None = None
    """The data directory that the key is from, if it is."""


def data_dir() -> Path:
    """As the settings have it, read without loading them: this is on the path of every command."""
    named = os.environ.get("JOURNEYMAN_DATA_DIR")
    return Path(named) if named else Path.home() / ".journeyman"


def read_stack(directory: Path) -> dict[str, Any] | None:
    """What the supervisor wrote about the stack it runs, or None."""
    try:
        found = json.loads((directory / STACK_FILE).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def stack_api_url(stack: dict[str, Any] | None) -> str | None:
    urls = (stack or {}).get("urls")
    found = (stack or {}).get("api_url") or (urls.get("api") if isinstance(urls, dict) else None)
    return found if isinstance(found, str) else None


def find_server(url: str | None = None, api_key: str | None = None) -> Server:
    """Options first, then ``JOURNEYMAN_URL`` and ``JOURNEYMAN_API_KEY``, then the data directory of a local stack.

    Raises :class:`CommandError` that says what is missing.
    """
    directory = data_dir()
    found_url = url or os.environ.get("JOURNEYMAN_URL")
    local = found_url is None
    source = "--url" if url else "JOURNEYMAN_URL" if found_url else str(directory)
    if found_url is None:
        found_url = stack_api_url(read_stack(directory))
    if found_url is None:
        raise CommandError(
            f"No server found: {directory} has no running stack, and neither --url nor JOURNEYMAN_URL names one.\n"
            "Start one on this machine with `journeyman up`, or name one: --url https://… --api-key jm_…",
            Exit.PLATFORM,
        )
    if not found_url.startswith(("http://", "https://")):
        raise CommandError(
            f"The server's address must begin with http:// or https://, not {found_url!r} (from {source})."
        )
    try:
        _ = urlsplit(found_url).port
    except ValueError as error:
        raise CommandError(f"The server's address {found_url!r} (from {source}) is none: {error}.") from error
    named_key = api_key or os.environ.get("JOURNEYMAN_API_KEY")
    # A local key is never sent to a server that somebody named: it may be a stranger's.
    key = named_key or (read_key(directory / KEY_FILE) if local else None)
    if not key:
        raise CommandError(
            f"No API key for {found_url}. Give one with --api-key or JOURNEYMAN_API_KEY"
            + (f"; {directory / KEY_FILE} does not exist or cannot be read." if local else ".")
        )
    if not (key.isascii() and key.isprintable()):
        raise CommandError(
            "The API key contains characters that no key has; it may have been copied with more than itself."
        )
    return Server(found_url.rstrip("/"), key, source, None if named_key else directory)


def read_key(file: Path) -> str | None:
    """The key in the file, or None."""
    try:
        return file.read_text().strip() or None
    except OSError:
        return None


def demo_server(server: Server) -> Server | None:
    """The same server as the demos' project sees it; None where there is no such project, or a key was named."""
    key = read_key(server.directory / DEMO_KEY_FILE) if server.directory is not None else None
    return replace(server, api_key=key) if key is not None and key != server.api_key else None
