"""What a URL leads to."""

from collections.abc import Sequence

import pytest

from journeyman.platform.egress.addresses import AddressPolicy
from journeyman.platform.egress.destinations import DestinationRefused, Resolver, refusal_of_literal, resolve


def answering(*addresses: str) -> Resolver:
    async def resolver(host: str, port: int) -> Sequence[str]:
        del host, port
        return addresses

    return resolver


async def test_the_first_answer_is_kept() -> None:
    found = await resolve("https://Git.Example.ORG./a", AddressPolicy(), resolver=answering("1.1.1.1", "9.9.9.9"))
    assert (found.scheme, found.host, found.port) == ("https", "git.example.org", 443)
    assert found.addresses == ("1.1.1.1", "9.9.9.9")
    assert found.matches("GIT.example.org", 443)
    assert not found.matches("git.example.org", 22)
    assert not found.matches("x.git.example.org", 443)


async def test_international_names_are_pinned_in_their_ascii_form() -> None:
    found = await resolve("https://bücher.example/a", AddressPolicy(), resolver=answering("1.1.1.1"))
    assert found.host == "xn--bcher-kva.example"


@pytest.mark.parametrize("spelling", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "localhost"])
async def test_other_spellings_of_loopback(spelling: str) -> None:
    with pytest.raises(DestinationRefused):
        await resolve(f"https://{spelling}/a", AddressPolicy(private=True))


async def test_a_public_host_needs_https() -> None:
    with pytest.raises(DestinationRefused, match="https://"):
        await resolve("http://git.example.org/a", AddressPolicy(private=True), resolver=answering("1.1.1.1"))
    found = await resolve("http://git.example.org/a", AddressPolicy(private=True), resolver=answering("10.255.1.1"))
    assert found.port == 80


async def test_a_name_without_an_address() -> None:
    with pytest.raises(DestinationRefused, match="no address"):
        await resolve("https://git.example.org/a", AddressPolicy(), resolver=answering())


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("https://localhost/x", True),
        ("https://a.localhost:8443/x", True),
        ("https://[::1]/x", True),
        ("https://[::ffff:8.8.8.8]/x", True),
        ("https://10.0.0.1/x", True),
        ("https://1.1.1.1/x", False),
        ("https://git.example.org/x", False),
    ],
)
def test_what_the_spelling_alone_tells(url: str, refused: bool) -> None:
    assert (refusal_of_literal(url, AddressPolicy()) is not None) is refused
