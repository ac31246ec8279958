"""Which network addresses a task may reach through the platform. The one place that decides it."""

import socket
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self

from journeyman.platform.kit.settings import Settings

IPAddress = IPv4Address | IPv6Address
_Networks = tuple[IPv4Network | IPv6Network, ...]


class Scope(StrEnum):
    """How far an address reaches."""

    PUBLIC = "public"
    """A unicast address of the internet."""
    PRIVATE = "private"
    """A network of the operator: RFC 1918, RFC 6598 (shared by carriers, used by overlay networks), RFC 4193."""
    MACHINE = "machine"
    """This machine: loopback, the unspecified address, and the addresses of its interfaces."""
    FORBIDDEN = "forbidden"
    """No policy allows it: link-local, cloud metadata, multicast, reserved, translated and tunnelled addresses."""


def _networks(*texts: str) -> _Networks:
    return tuple(ip_network(text) for text in texts)


_MACHINE: Final = _networks("127.0.0.0/8", "0.0.0.0/32", "::1/128", "::/128")
_METADATA: Final = _networks(
    "169.254.0.0/16",  # link-local, with the metadata services of most clouds
    "100.100.100.200/32",  # Alibaba Cloud
    "168.63.129.16/32",  # Azure
    "fd00:ec2::/32",  # AWS
    "fd20:ce::/32",  # Google Cloud
    "fe80::/10",
)
_PRIVATE: Final = _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
_UNICAST_V6: Final = ip_network("2000::/3")
"""All public unicast of IPv6. Outside are mapped, compatible, NAT64, site-local and multicast addresses."""
_SPECIAL: Final = _networks(
    "0.0.0.0/8",
    "192.0.0.0/24",  # protocol assignments; Oracle Cloud's metadata
    "192.0.2.0/24",  # documentation
    "192.88.99.0/24",  # 6to4 relays
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
    "2001::/23",  # protocol assignments, Teredo among them
    "2001:db8::/32",  # documentation
    "2002::/16",  # 6to4
    "3fff::/20",  # documentation
)


def scope_of(address: str | IPAddress) -> Scope:
    """The scope of an address. Raises ``ValueError`` for text that is none.

    An IPv4 address inside of an IPv6 one (mapped, NAT64, 6to4) is never unpacked: all such addresses are forbidden. The
    machine's own addresses are found by asking the kernel which source it would use; nothing is sent.
    """
    found = ip_address(address) if isinstance(address, str) else address
    if isinstance(found, IPv6Address) and found.scope_id is not None:
        return Scope.FORBIDDEN
    if _in(found, _MACHINE):
        return Scope.MACHINE
    if _in(found, _METADATA) or _in(found, _SPECIAL):
        return Scope.FORBIDDEN
    private = _in(found, _PRIVATE)
    if isinstance(found, IPv6Address) and not private and found not in _UNICAST_V6:
        return Scope.FORBIDDEN
    if _of_this_machine(found):
        return Scope.MACHINE
    return Scope.PRIVATE if private else Scope.PUBLIC


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Which scopes may be reached. Public addresses always; the others only where the operator says so."""

    private: bool = False
    machine: bool = False

    @classmethod
    def for_git(cls, settings: Settings) -> Self:
        """What workspaces may be cloned from."""
        return cls(
            private=settings.git_allow_private_addresses or settings.git_allow_own_machine,
            machine=settings.git_allow_own_machine,
        )

    @property
    def public_only(self) -> bool:
        return not (self.private or self.machine)

    def refusal(self, address: str | IPAddress) -> str | None:
        """Why the address must not be reached, as the end of a sentence; ``None`` when it may be."""
        scope = scope_of(address)
        if scope is Scope.PUBLIC:
            return None
        if scope is Scope.PRIVATE:
            return None if self.private else "a private address, which tasks may not reach"
        if scope is Scope.MACHINE:
            return None if self.machine else "an address of the platform's own machine, which tasks may not reach"
        return "a link-local, metadata, multicast, reserved or translated address, which no task may reach"


def _in(address: IPAddress, networks: _Networks) -> bool:
    return any(address in network for network in networks)


def _of_this_machine(address: IPAddress) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False  # no route: nothing can be reached there either
