"""What a text must not name: the commands by which a task is verified, and the files and tests that they name."""

import pytest

from journeyman.platform.memory.verification import names_verification


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("make check", "All is well when `make  check` passes."),
        ("make check", "MAKE CHECK is slow."),
        ("a&&b", "It runs a && b."),
        ("python3 -c 'import shop'", 'It calls python3 -c "import shop".'),
        ("python3 -m pytest -q tests/held_out/test_totals.py", "The tests are in tests/held_out/test_totals.py."),
        ("python3 -m pytest -q tests/held_out/test_totals.py", "There is a held_out/test_totals.py."),
        ("python3 -m pytest -q tests/held_out/test_totals.py", "See test_totals.py."),
        ("python3 -m pytest -q tests/held_out/test_totals.py", "The module test_totals wants sums."),
        ("cd app && pytest tests/hidden", "Look into tests/hidden first."),
        ("pytest ./tests/hidden/", "Look into tests/hidden first."),
        ("pytest --rootdir=checks/secret", "Look into checks/secret first."),
        ("pytest a.py::Totals::negative_sums", "There is a case negative_sums."),
        ("pytest -k test_rounding", "Mind test_rounding."),
        ("python3 -m unittest tests.test_shop.Totals", "tests.test_shop.Totals is about sums."),
        ("python3 -m unittest tests.test_shop.Totals", "The module test_shop is about sums."),
        ("bash verify.sh", "Run verify.sh."),
        ("diff expected.json out.json", "Numbers in expected.json are strings."),
        ("/workspace/checks/run", "Start checks/run."),
    ],
)
def test_commands_and_what_they_name_are_seen(command: str, text: str) -> None:
    assert names_verification(text, ["true", command])


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("make", "What makes it slow is the cache."),
        ("python3 -m pytest tests/held_out", "The tests of this project are run by pytest."),
        ("pytest tests/", "Tests need PostgreSQL."),
        ("python3.11 -m pytest tests/a_b.py", "It needs python3.11."),
        ("/usr/bin/env bash -c 'test -s out' >/dev/null", "The tools are in /usr/bin."),
        ("grep -q x a.b", "Names have the form a.bc."),
        ("", "Anything."),
        ("'' \"\"", "Anything."),
        (" \n", "Anything."),
    ],
)
def test_what_only_looks_alike_passes(command: str, text: str) -> None:
    assert not names_verification(text, [command])


def test_without_commands_everything_passes() -> None:
    assert not names_verification("make check", [])


def test_long_commands_are_compared_whole() -> None:
    command = "printf '%s' " + " ".join(f"word{number}" for number in range(20_000))
    assert names_verification(f"It is {command}.", [command])
    assert not names_verification("It is printf '%s' word0 word1.", [command])
