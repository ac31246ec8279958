"""Fetching a workspace from git, with as little trust in the repository and its address as possible."""

import asyncio
import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

CLONE: Final = (
    "set -eu\n"
    'git clone --quiet --template= -- "$JOURNEYMAN_URL" /workspace/.clone\n'
    "cd /workspace/.clone\n"
    'if [ -n "$JOURNEYMAN_REF" ]; then\n'
    '  git -c advice.detachedHead=false checkout --quiet "$JOURNEYMAN_REF" --\n'
    "fi\n"
    "cd /workspace\n"
    "shopt -s dotglob\n"
    "mv /workspace/.clone/* /workspace/\n"
    "rmdir /workspace/.clone\n"
)
"""Address and ref come in as variables, so that nothing in them is ever read as shell or as an option."""


def clone_environment(url: str, ref: str | None) -> dict[str, str]:
    """The variables for ``CLONE``: no other protocol than HTTP(S), no prompt, no redirect: the host that was checked is
    the host that is asked.
    """
    return {
        "JOURNEYMAN_URL": url,
        "JOURNEYMAN_REF": ref or "",
        "GIT_ALLOW_PROTOCOL": "https:http",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": "3",
        "GIT_CONFIG_KEY_0": "http.followRedirects",
        "GIT_CONFIG_VALUE_0": "false",
        "GIT_CONFIG_KEY_1": "core.symlinks",
        "GIT_CONFIG_VALUE_1": "true",
        "GIT_CONFIG_KEY_2": "submodule.recurse",
        "GIT_CONFIG_VALUE_2": "false",
    }


async def resolve_public(url: str, *, allow_private: bool) -> str | None:
    """Why this address must not be cloned from, or None.

    A name is resolved here and once more by git; a name server that answers differently the second time reaches only
    what the fetching sandbox can reach. Operators who cannot accept that keep git sources off behind a proxy.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        return f"The git URL {url!r} names no host."
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except OSError:
        return f"The host {parts.hostname!r} of the git URL cannot be resolved."
    if allow_private:
        return None
    for *_, address in found:
        if not ipaddress.ip_address(address[0]).is_global:
            return (
                f"The host {parts.hostname!r} of the git URL resolves to a private address, which tasks may not reach."
            )
    return None
