"""The same promises kept for an ordinary user, without control groups: these tests again, in a process that is not root."""

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
NOBODY = 65534
CHOSEN = "Privileges or TestAgent or Host or bomb or memory or disk or inode or killed or sockets or once or daemons or replace"


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    home = Path(tempfile.mkdtemp(prefix="jm-nobody-"))
    os.chown(home, NOBODY, NOBODY)
    roots = [str(PROJECT / name) for name in ("apps", "workflows", "platform", "agents")]
    yield {
        "HOME": str(home),
        "TMPDIR": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([*roots, sysconfig.get_path("purelib")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    shutil.rmtree(home, ignore_errors=True)


def interpreter(environment: dict[str, str]) -> str:
    """A Python of this version that an ordinary user may run, and that finds what is installed here."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}", shutil.which(name)):
        if candidate is None:
            continue
        try:
            tried = subprocess.run(
                [candidate, "-c", "import pytest_asyncio, psutil, journeyman.platform.sandboxes.local"],
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                env=environment,
                capture_output=True,
                timeout=60,
                check=False,
            )
        except OSError:
            continue
        if tried.returncode == 0:
            return candidate
    pytest.skip(f"no {name} here that an ordinary user may run (root's own is in a directory closed to others)")


@pytest.mark.skipif(os.geteuid() != 0, reason="all tests of this directory are run by an ordinary user already")
async def test_as_nobody(environment: dict[str, str]):
    python = await asyncio.to_thread(interpreter, environment)
    done = await asyncio.create_subprocess_exec(
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN),
        *(
            str(HERE / name)
            for name in ("test_conformance.py", "test_isolation.py", "test_limits.py", "test_survival.py")
        ),
        cwd=PROJECT,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await done.communicate()
    assert done.returncode == 0, output.decode("utf-8", "replace")[-8000:]
    assert b" passed" in output
