"""Where the output goes when it cannot go where it should."""

import subprocess
import sys
from pathlib import Path

COMMAND = f"{sys.executable} -m journeyman.apps.cli.main"


def in_shell(line: str) -> tuple[int, str]:
    done = subprocess.run(["sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_full_disk_is_told() -> None:
    code, said = in_shell(f"{COMMAND} --version > /dev/full")
    assert (code, "no space left" in said, "Traceback" in said) == (3, True, False)


def test_a_command_works_without_standard_output(home: Path) -> None:
    assert in_shell(f"{COMMAND} --version >&-") == (0, "")
    code, said = in_shell(f"{COMMAND} list >&-")
    assert (code, said.startswith("No server found"), "Traceback" in said) == (3, True, False)


def test_a_command_works_without_standard_error(home: Path) -> None:
    assert in_shell(f"{COMMAND} list 2>&-") == (3, "")
