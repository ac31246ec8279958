"""What holds a sandbox to its limits on this machine, and what is left open."""

import math
import os
import platform
import re
import zlib

from journeyman.platform.sandboxes.cgroups import Hierarchy
from journeyman.platform.sandboxes.port import EnforcementReport, LimitEnforcement, Limits


def kernel() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(match[1]), int(match[2])) if match else (0, 0)


def report(
    hierarchy: Hierarchy | None, limits: Limits, complaint: str | None, *, privileged: bool
) -> EnforcementReport:
    """How each limit is enforced. ``complaint``: why no sandbox can be made at all, if so."""
    controllers = set(hierarchy.parents) if hierarchy else set()
    group = f"control group (version {hierarchy.version})" if hierarchy else ""
    works = complaint is None
    found = []
    if "memory" in controllers:
        note = "the group also bounds kernel memory and files; the agent kills the largest process at the limit"
        found.append(LimitEnforcement("memory", works, group, note))
    else:
        note = "kernel memory, such as socket buffers, is not counted; memfd_create and shmget are refused"
        found.append(
            LimitEnforcement("memory", works, "resource limit for each process, the agent watches the sum", note)
        )
    if "cpu" in controllers:
        found.append(LimitEnforcement("cpus", works, group))
    else:
        whole = limits.cpus >= 1
        found.append(
            LimitEnforcement(
                "cpus",
                works and whole,
                "CPU affinity" if whole else "nothing",
                "rounded up to whole CPUs" if whole else "less than one CPU needs the cpu control group",
            )
        )
    if "pids" in controllers:
        found.append(LimitEnforcement("pids", works, group))
    else:
        modern = kernel() >= (5, 14)
        note = "" if modern else "before Linux 5.14 processes are not counted for each sandbox"
        found.append(
            LimitEnforcement(
                "pids", works and modern, "resource limit in a user namespace" if modern else "nothing", note
            )
        )
    found.append(LimitEnforcement("disk", works, "size and inodes of a tmpfs", "files are kept in memory"))
    found.append(LimitEnforcement("open_files", works, "resource limit for each process"))
    who = "a uid of its own, in a user namespace" if privileged else "the platform's own uid, in a user namespace"
    isolation = [
        LimitEnforcement("namespaces", works, "user, pid, mount, ipc, uts, cgroup, network", complaint or ""),
        LimitEnforcement("user", works, who),
        LimitEnforcement("seccomp", works, "deny list; unknown system calls are refused"),
        LimitEnforcement("privileges", works, "no capabilities, no_new_privs"),
        LimitEnforcement("network", works, "a network namespace with nothing but its own loopback"),
    ]
    return EnforcementReport("local", found, isolation)


def resource_limits(hierarchy: Hierarchy | None, limits: Limits) -> dict[str, int]:
    """``RLIMIT_*`` of commands, by name."""
    found = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.disk_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": limits.pids,
    }
    if hierarchy is None or "memory" not in hierarchy.parents:
        found["RLIMIT_DATA"] = limits.memory_bytes
    return found


def affinity(hierarchy: Hierarchy | None, limits: Limits, sandbox_id: str) -> list[int]:
    """The CPUs of a sandbox where nothing else can limit it; empty when the control group does."""
    if hierarchy is not None and "cpu" in hierarchy.parents:
        return []
    allowed = sorted(os.sched_getaffinity(0))
    count = min(len(allowed), max(1, math.ceil(limits.cpus)))
    first = zlib.crc32(sandbox_id.encode())
    return sorted({allowed[(first + offset) % len(allowed)] for offset in range(count)})
