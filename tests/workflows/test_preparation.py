"""What preparation can tell of a command or an address without running anything."""

import pytest

from journeyman.workflows.activities.preparation import first_program


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
