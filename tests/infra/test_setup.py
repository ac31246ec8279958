"""``make setup`` on machines that lack this or that; what would fetch from a registry is not run here."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_lists_every_target() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    listed = make().stdout
    assert {target for target in targets if not re.search(rf"^  {target} ", listed, re.MULTILINE)} == set()


def test_no_python_is_said_in_a_sentence(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "uname"):
        (tools / name).symlink_to(Path("/bin") / name if (Path("/bin") / name).exists() else Path("/usr/bin") / name)
    done = subprocess.run(
        [tools / "sh", ROOT / "infra/bin/setup"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no Python 3.11 or newer found" in done.stderr
    assert "make setup PYTHON=" in done.stderr


@pytest.mark.parametrize("path", ["infra/bin/setup", ".ci/run"])
def test_scripts_are_executable_and_parse(path: str) -> None:
    assert os.access(ROOT / path, os.X_OK)
    subprocess.run(["sh", "-n", ROOT / path], check=True)


def test_ci_runs_what_the_readme_says() -> None:
    script = (ROOT / ".ci/run").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "make test" in script
    assert "make demo" in readme
    assert "make test" in readme
    assert readme.index("make demo") < readme.index("make test") < 1000
