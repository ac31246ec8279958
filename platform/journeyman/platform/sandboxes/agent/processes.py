"""The process table of the sandbox, memory of processes, and signals."""

from __future__ import annotations

import os


class Process:
    """One line of ``/proc``."""

    __slots__ = ("parent", "pid", "session")

    def __init__(self, pid: int) -> None:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        self.pid = pid
        self.parent = int(fields[1])
        self.session = int(fields[3])


def processes() -> dict[int, Process]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                found[int(name)] = Process(int(name))
            except (OSError, IndexError, ValueError):
                continue
    return found


def threads_of(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def resident_bytes(pid: int) -> int:
    """Anonymous memory of a process; pages that it shares with a parent since a fork count in full for both."""
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def proportional_bytes(pid: int) -> int:
    """Anonymous memory of a process, shared pages divided by who shares them. Takes milliseconds for a large one."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss_Anon:"):
                    return int(line.split()[1]) * 1024
    except PermissionError:
        pass  # it made itself unreadable: its pages count in full
    return resident_bytes(pid)


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
