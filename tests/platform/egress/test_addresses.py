"""Which addresses may be reached."""

import socket

import pytest

from journeyman.platform.egress.addresses import AddressPolicy, Scope, scope_of
from journeyman.platform.kit.settings import Settings


@pytest.mark.parametrize(
    ("address", "scope"),
    [
        ("1.1.1.1", Scope.PUBLIC),
        ("140.82.121.4", Scope.PUBLIC),
        ("172.15.255.255", Scope.PUBLIC),
        ("172.32.0.0", Scope.PUBLIC),
        ("100.63.255.255", Scope.PUBLIC),
        ("223.255.255.255", Scope.PUBLIC),
        ("2606:4700:4700::1111", Scope.PUBLIC),
        ("10.0.0.1", Scope.PRIVATE),
        ("172.16.0.1", Scope.PRIVATE),
        ("192.168.1.1", Scope.PRIVATE),
        ("100.64.0.1", Scope.PRIVATE),
        ("fd12:3456::1", Scope.PRIVATE),
        ("127.0.0.1", Scope.MACHINE),
        ("127.255.255.254", Scope.MACHINE),
        ("0.0.0.0", Scope.MACHINE),
        ("::1", Scope.MACHINE),
        ("::", Scope.MACHINE),
        ("0.1.2.3", Scope.FORBIDDEN),
        ("169.254.169.254", Scope.FORBIDDEN),
        ("100.100.100.200", Scope.FORBIDDEN),
        ("168.63.129.16", Scope.FORBIDDEN),
        ("192.0.0.192", Scope.FORBIDDEN),
        ("fd00:ec2::254", Scope.FORBIDDEN),
        ("fd20:ce::254", Scope.FORBIDDEN),
        ("192.0.2.1", Scope.FORBIDDEN),
        ("192.88.99.1", Scope.FORBIDDEN),
        ("198.18.0.1", Scope.FORBIDDEN),
        ("224.0.0.1", Scope.FORBIDDEN),
        ("239.255.255.250", Scope.FORBIDDEN),
        ("240.0.0.1", Scope.FORBIDDEN),
        ("255.255.255.255", Scope.FORBIDDEN),
        ("fe80::1", Scope.FORBIDDEN),
        ("fe80::1%lo", Scope.FORBIDDEN),
        ("2606:4700::1%lo", Scope.FORBIDDEN),
        ("fec0::1", Scope.FORBIDDEN),
        ("ff02::1", Scope.FORBIDDEN),
        ("::ffff:127.0.0.1", Scope.FORBIDDEN),
        ("::ffff:1.1.1.1", Scope.FORBIDDEN),
        ("::127.0.0.1", Scope.FORBIDDEN),
        ("64:ff9b::7f00:1", Scope.FORBIDDEN),
        ("64:ff9b:1::1", Scope.FORBIDDEN),
        ("2002:7f00:1::", Scope.FORBIDDEN),
        ("2001:0:7f00:1::", Scope.FORBIDDEN),
        ("2001:db8::1", Scope.FORBIDDEN),
        ("5f00::1", Scope.FORBIDDEN),
        ("100::1", Scope.FORBIDDEN),
    ],
)
def test_scope(address: str, scope: Scope) -> None:
    assert scope_of(address) is scope


def test_addresses_of_interfaces_are_not_reached_as_private_ones() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no route")
        own = probe.getsockname()[0]
    assert AddressPolicy(private=True).refusal(own) is not None


def test_what_the_settings_allow() -> None:
    public, private, machine = "1.1.1.1", "10.255.0.9", "127.0.0.1"
    for settings, allowed in (
        (Settings(), {public}),
        (Settings(git_allow_private_addresses=True), {public, private}),
        (Settings(git_allow_own_machine=True), {public, private, machine}),
    ):
        policy = AddressPolicy.for_git(settings)
        assert {address for address in (public, private, machine) if policy.refusal(address) is None} == allowed
        assert policy.refusal("169.254.169.254") is not None
        assert policy.refusal("::ffff:10.0.0.1") is not None
