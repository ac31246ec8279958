"""Stacks of stand-ins: the real supervision of cheap processes."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from journeyman.apps.embedded.ports import choose_port
from journeyman.apps.embedded.probes import http_ready
from journeyman.apps.embedded.specs import ProcessSpec

SCRIPT = Path(__file__).with_name("stand_in.py")


def stand_in(
    name: str,
    journal: Path,
    *,
    mode: str = "",
    depends_on: Sequence[str] = (),
    port: int | None = None,
    **options: float,
) -> ProcessSpec:
    port = port or choose_port(set())
    return ProcessSpec(
        name=name,
        argv=[sys.executable, str(SCRIPT), name, str(port), str(journal), *([mode] if mode else [])],
        env=dict(os.environ),
        ready=http_ready(port, "/readyz"),
        ports=[port],
        depends_on=depends_on,
        **options,
    )


def journal_lines(journal: Path, what: str) -> list[str]:
    """Names that noted this, in order: ``started`` or ``stopped``."""
    return [line.split()[0] for line in journal.read_text().splitlines() if line.split()[1] == what]


def grandchildren(journal: Path) -> list[int]:
    return [int(line.split()[2]) for line in journal.read_text().splitlines() if line.split()[1] == "child"]


def running(pids: Iterable[int]) -> list[int]:
    """Those that still run; zombies do not."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in {"Z", "X"}:
            found.append(pid)
    return found


def wait_until(condition: Callable[[], object], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition did not come true in time")
        time.sleep(0.02)
