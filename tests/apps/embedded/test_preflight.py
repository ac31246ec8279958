"""What is found out about a machine before anything is started on it."""

import resource
import subprocess
import sys

import pytest

CHECK = """
import asyncio, resource
from journeyman.apps.embedded.errors import MachineUnfit
from journeyman.apps.embedded.preflight import check_machine
from journeyman.platform.kit.settings import Settings
try:
    asyncio.run(check_machine(Settings(), {"objects"}))
except MachineUnfit as error:
    print(error.message)
else:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "said"),
    [
        (64, 64, "A process may open only 64 files here"),
        (64, 2048, "2048"),
        (1024, 8192, "4096"),
        (8192, 8192, "8192"),
    ],
)
def test_enough_files_may_be_opened_or_it_is_said_why_not(soft: int, hard: int, said: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    done = subprocess.run([sys.executable, "-c", CHECK], check=True, capture_output=True, text=True, preexec_fn=limit)
    assert done.stdout.startswith(said)
