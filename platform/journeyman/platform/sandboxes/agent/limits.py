"""What all commands of the sandbox may have together: memory, processes, disk."""

from __future__ import annotations

import os

from .processes import processes, proportional_bytes, resident_bytes, send_signal, threads_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal


def disk_is_full() -> bool:
    """Tell whether the file system behind all writable directories has no room for one more page, or file."""
    status = os.statvfs("/workspace")
    return status.f_bavail == 0 or status.f_favail == 0


class Limits:
    """The limits, and descriptors of the control group's counters where there is one."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.memory_bytes = int(config["memory_bytes"])
        self.pids = int(config["pids"])
        self.oom_fd: int | None = config.get("oom_fd")
        self.stat_fd: int | None = config.get("stat_fd")
        self.stat_key = str(config.get("stat_key", "")).encode()
        self.pids_fd: int | None = config.get("pids_fd")

    def oom_kills(self) -> int:
        """Count how often the kernel killed for memory in this sandbox's control group so far."""
        if self.oom_fd is None:
            return 0
        for line in os.pread(self.oom_fd, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def enforce_memory(self) -> bool:
        """Kill the largest process while all together hold more anonymous memory than allowed; tell whether any was.

        The control group, where there is one, also counts the files of the sandbox; this one tells the two apart.
        """
        if self.stat_fd is not None:
            for line in os.pread(self.stat_fd, 16384, 0).splitlines():
                if line.startswith(self.stat_key + b" ") and int(line.split()[1]) <= self.memory_bytes:
                    return False
        sizes: dict[int, int] = {}
        for measure in (resident_bytes, proportional_bytes):
            sizes.clear()
            for pid in processes():
                try:
                    sizes[pid] = measure(pid)
                except OSError:
                    continue
            if sum(sizes.values()) <= self.memory_bytes:
                return False
        while sizes and sum(sizes.values()) > self.memory_bytes:
            largest = max(sizes, key=lambda pid: sizes[pid])
            send_signal(largest, signal.SIGKILL)
            del sizes[largest]
        return True

    def processes_used_up(self) -> bool:
        """Tell whether the sandbox has all the processes and threads that it may have."""
        if self.pids_fd is not None and int(os.pread(self.pids_fd, 64, 0)) < self.pids:
            return False  # the group counts those outside of the sandbox, too, so that this alone says nothing
        return 1 + sum(threads_of(pid) for pid in processes()) >= self.pids  # the agent counts, too
