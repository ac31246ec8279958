"""What preparation can tell of a command or an address without running anything."""

import pytest

from journeyman.workflows.activities.preparation import first_program
from journeyman.workflows.source import clone_environment, resolve_public


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python3 -m unittest", "python3"),
        ("A=1 B='x y' make test", "make"),
        ("./run.sh", None),
        ("$TOOL --check", None),
        ("if true; then echo; fi", "if"),
        ("# nothing", None),
        ("echo 'unclosed", None),
        ("(cd x && make)", None),
    ],
)
def test_the_program_a_command_begins_with(command: str, program: str | None) -> None:
    assert first_program(command) == program


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "10.1.2.3", "169.254.169.254", "[::1]", "[fd00:ec2::254]", "0.0.0.0"]
)
async def test_private_addresses_are_not_cloned_from(host: str) -> None:
    problem = await resolve_public(f"https://{host}/repository.git", allow_private=False)
    assert problem is not None
    assert "private" in problem
    assert await resolve_public(f"https://{host}/repository.git", allow_private=True) is None


async def test_an_address_without_a_host_is_refused() -> None:
    assert await resolve_public("https:///x", allow_private=True) is not None


def test_the_address_never_becomes_part_of_the_command() -> None:
    variables = clone_environment("https://example.org/$(reboot)", "--upload-pack=reboot")
    assert variables["JOURNEYMAN_URL"].endswith("$(reboot)")
    assert variables["GIT_ALLOW_PROTOCOL"] == "https:http"


def test_redirects_are_not_followed() -> None:
    variables = clone_environment("https://example.org/repository.git", None)
    configuration = {
        variables[f"GIT_CONFIG_KEY_{number}"]: variables[f"GIT_CONFIG_VALUE_{number}"]
        for number in range(int(variables["GIT_CONFIG_COUNT"]))
    }
    assert configuration["http.followRedirects"] == "false"
