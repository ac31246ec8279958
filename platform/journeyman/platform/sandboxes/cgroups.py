"""Control groups of sandboxes, version 1 and 2, where the platform may make them.

One group for each sandbox, below the one that the platform itself is in. Without one, resource limits and the agent
take over (see :mod:`.enforcement`).
"""

import contextlib
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from journeyman.platform.sandboxes.port import Limits

_PERIOD_US = 20_000
"""Short, so that an agent in a group that has used up its share waits for 20 ms at most."""
_SPARE_PIDS = 16
"""Room for bubblewrap, the agent and its next command when commands have used up theirs."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The directories of one sandbox's group (one in version 2, one for each controller in version 1)."""

    directories: list[str]
    oom_file: str | None = None
    stat_file: str | None = None
    stat_key: str = ""
    pids_file: str | None = None

    @property
    def joins(self) -> list[str]:
        """Files to write a process id to."""
        return [f"{directory}/cgroup.procs" for directory in self.directories]


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made, by controller (``memory``, ``pids``, ``cpu``)."""

    version: int
    parents: dict[str, str] = field(default_factory=dict)

    def create(self, name: str, limits: Limits) -> ControlGroup:
        """Make a group with these limits. Raises ``OSError``."""
        # Files of a sandbox are in memory and charged to it: the group may hold both.
        memory_bytes = limits.memory_bytes + limits.disk_bytes
        quota = max(1000, int(limits.cpus * _PERIOD_US))
        settings: dict[str, list[tuple[str, str]]]
        if self.version == 2:
            settings = {
                "memory": [("memory.max", str(memory_bytes)), ("?memory.swap.max", "0")],
                "pids": [("pids.max", str(limits.pids + _SPARE_PIDS))],
                "cpu": [("cpu.max", f"{quota} {_PERIOD_US}")],
            }
        else:
            settings = {
                "memory": [
                    ("memory.limit_in_bytes", str(memory_bytes)),
                    ("?memory.memsw.limit_in_bytes", str(memory_bytes)),
                ],
                "pids": [("pids.max", str(limits.pids + _SPARE_PIDS))],
                "cpu": [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))],
            }
        directories: list[str] = []
        for controller, parent in self.parents.items():
            directory = f"{parent}/{name}"
            Path(directory).mkdir(parents=True, exist_ok=True)
            if directory not in directories:
                directories.append(directory)
            for file, value in settings[controller]:
                optional = file.startswith("?")
                try:
                    Path(directory, file.removeprefix("?")).write_text(value)
                except OSError:
                    if not optional:
                        raise
        memory = f"{self.parents['memory']}/{name}" if "memory" in self.parents else None
        pids = f"{self.parents['pids']}/{name}/pids.current" if "pids" in self.parents else None
        if memory is None:
            return ControlGroup(directories, pids_file=pids)
        oom, key = ("memory.events", "anon") if self.version == 2 else ("memory.oom_control", "total_rss")
        return ControlGroup(directories, f"{memory}/{oom}", f"{memory}/memory.stat", key, pids)


def remove(directories: list[str]) -> None:
    """Remove groups whose processes have been killed; waits up to a second for them to be gone."""
    patience = time.monotonic() + 1.0
    for directory in directories:
        while True:
            try:
                os.rmdir(directory)  # noqa: PTH106  a group is removed although it holds files
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > patience:
                    break
                time.sleep(0.005)
            else:
                break


def _mounts() -> dict[str, str]:
    """Mount points by what they hold: ``v2``, or the name of a version 1 controller."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split()[:3]
        point = left.split()[4]
        if kind == "cgroup2":
            found.setdefault("v2", point)
        elif kind == "cgroup":
            for option in options.split(","):
                if option in {"memory", "pids", "cpu"}:
                    found.setdefault(option, point)
    return found


def _own_groups() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            found["v2"] = path
            continue
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _works(hierarchy: Hierarchy) -> bool:
    """Whether a group can be made, limited and entered."""
    name = f"journeyman-probe-{secrets.token_hex(6)}"
    directories = [f"{parent}/{name}" for parent in hierarchy.parents.values()]
    try:
        group = hierarchy.create(name, Limits())
        for join in group.joins:
            if not os.access(join, os.W_OK):
                return False
    except OSError:
        return False
    finally:
        remove(list(dict.fromkeys(directories)))
    return True


def _detect_v2(mount: str, own: str) -> Hierarchy | None:
    wanted = {"memory", "pids", "cpu"}
    candidate = Path(mount + own)
    for directory in [candidate, *candidate.parents]:
        if not str(directory).startswith(mount):
            break
        try:
            available = set((directory / "cgroup.controllers").read_text().split())
            enabled = set((directory / "cgroup.subtree_control").read_text().split())
        except OSError:
            continue
        if not wanted <= available or not os.access(directory, os.W_OK):
            continue
        if not wanted <= enabled:
            with contextlib.suppress(OSError):  # refused while the group itself holds processes
                (directory / "cgroup.subtree_control").write_text("+memory +pids +cpu")
                enabled = wanted
        if wanted <= enabled:
            return Hierarchy(2, dict.fromkeys(sorted(wanted), str(directory)))
    return None


def detect() -> Hierarchy | None:
    """The hierarchy to make groups in, or ``None`` where that is not allowed."""
    try:
        mounts, own = _mounts(), _own_groups()
    except OSError:
        return None
    if "v2" in mounts:
        found = _detect_v2(mounts["v2"], own.get("v2", "/"))
        if found is not None and _works(found):
            return found
    parents: dict[str, str] = {}
    for controller in ("memory", "pids", "cpu"):
        if controller not in mounts:
            continue
        path = Path(mounts[controller] + own.get(controller, "/"))
        if not path.is_dir():
            path = Path(mounts[controller])  # a container shows its own group as the root
        single = Hierarchy(1, {controller: str(path)})
        if os.access(path, os.W_OK) and _works(single):
            parents[controller] = str(path)
    return Hierarchy(1, parents) if parents else None
