"""From a URL to a destination: a name that is resolved once, checked, and pinned."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from journeyman.platform.egress.addresses import AddressPolicy, Scope, scope_of
from journeyman.platform.kit.errors import InvalidInput

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host, as text. Raises ``OSError``."""

DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_HOST: Final = re.compile(r"(?!-)[a-z0-9_.-]{1,253}|[0-9a-f:.]{2,45}")
_RESOLVE_TIMEOUT_S: Final = 20.0


class DestinationRefused(InvalidInput):
    """The URL leads to nothing that may be reached; the message is for the person who named it."""

    code = "destination_refused"


@dataclass(frozen=True, slots=True)
class Destination:
    """The only place that a proxy connects to. ``addresses`` were checked; they are tried in this order."""

    scheme: str
    host: str
    """Lower case, without a final dot; an IPv6 address without brackets."""
    port: int
    addresses: tuple[str, ...]

    def matches(self, host: str, port: int) -> bool:
        """Whether a client's words for a destination mean this one."""
        return normal_host(host) == self.host and port == self.port


def normal_host(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def refusal_of_literal(url: str, policy: AddressPolicy) -> str | None:
    """Why the URL's host must not be reached, when the URL alone tells: no name is resolved."""
    host = normal_host(urlsplit(url).hostname or "")
    if host == "localhost" or host.endswith(".localhost"):
        host = "127.0.0.1"
    try:
        return policy.refusal(host)
    except ValueError:
        return None


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """The machine's own resolver, without duplicates."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def resolve(url: str, policy: AddressPolicy, *, resolver: Resolver = resolve_host) -> Destination:
    """Resolve the host of an ``https`` or ``http`` URL, once. Raises :class:`DestinationRefused`.

    All addresses of the name must be allowed. ``http`` is for the operator's own networks only: elsewhere what arrives
    could have been changed on its way.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise DestinationRefused(f"{url!r} is not a valid URL: {error}.") from None
    default = DEFAULT_PORTS.get(parts.scheme)
    if default is None:
        raise DestinationRefused(f"{url!r} does not begin with https://.")
    if parts.username is not None or parts.password is not None:
        raise DestinationRefused("The URL holds a user name or password, which would be stored with the task.")
    try:
        host = normal_host((host or "").encode("idna").decode("ascii")) if ":" not in (host or "") else host
    except UnicodeError:
        host = None
    if not host or _HOST.fullmatch(host) is None or port == 0:
        raise DestinationRefused(f"The URL {url!r} names no host.")
    port = port or default
    try:
        async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
            addresses = tuple(await resolver(host, port))
    except (OSError, UnicodeError):
        raise DestinationRefused(f"The host {host!r} of the URL cannot be resolved.") from None
    if not addresses:
        raise DestinationRefused(f"The host {host!r} of the URL has no address.")
    for address in addresses:
        refusal = policy.refusal(address)
        if refusal is not None:
            raise DestinationRefused(f"The host {host!r} of the URL resolves to {refusal}.")
    if parts.scheme == "http" and any(scope_of(address) is Scope.PUBLIC for address in addresses):
        raise DestinationRefused(f"The host {host!r} is public; its URL must begin with https://.")
    return Destination(parts.scheme, host, port, addresses)
