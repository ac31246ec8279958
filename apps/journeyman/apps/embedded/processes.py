"""Processes by pid and start time: found, ended and waited for, never mistaken for others that got the same pid."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return start_ticks_of(self.pid) == self.start_ticks


def start_ticks_of(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when it does not run (any more)."""
    try:
        # The command may hold spaces and parentheses; what follows the last one is well-formed.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def identify(pid: int) -> ProcessIdentity | None:
    ticks = start_ticks_of(pid)
    return None if ticks is None else ProcessIdentity(pid, ticks)


def end_all(processes: Iterable[ProcessIdentity], grace_s: float) -> list[ProcessIdentity]:
    """End what still runs of these, first asking, after ``grace_s`` by force; returns what was found running.

    Each is taken to lead a process group, as the supervisor's children do, and its group goes with it.
    """
    found = [process for process in processes if process.alive]
    for process in found:
        _signal_group(process, signal.SIGTERM)
    if not wait_for_end(found, grace_s):
        for process in found:
            _signal_group(process, signal.SIGKILL)
        wait_for_end(found, 10)
    return found


def wait_for_end(processes: Iterable[ProcessIdentity], timeout_s: float) -> bool:
    """Whether all of them ended in that time."""
    left = list(processes)
    deadline = time.monotonic() + timeout_s
    while left := [process for process in left if process.alive]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _signal_group(process: ProcessIdentity, number: signal.Signals) -> None:
    with suppress(OSError):
        if process.alive and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        elif process.alive:
            os.kill(process.pid, number)
