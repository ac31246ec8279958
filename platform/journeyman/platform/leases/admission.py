"""Admission of sandboxes by the memory of the machine that they run on.

Files of a sandbox are in memory too (tmpfs), so that a sandbox may use ``memory_bytes + disk_bytes``. What a sandbox of the
default size may use is a limit that few come near: it counts by an overcommit factor. What a task asks for beyond the
default counts in full. The workers of a machine share one account, rows in PostgreSQL under a lock, so that two leases at
once cannot both take the last memory.
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.settings import Settings
from journeyman.platform.leases import repository
from journeyman.platform.sandboxes.errors import NoRoomForSandbox, SandboxTooLarge
from journeyman.platform.sandboxes.port import MIB, Limits

FORGOTTEN_AFTER: Final = timedelta(seconds=60)
"""Age after which a promise without a sandbox on its machine is freed: its worker died while it made the sandbox, or the
sandbox has ended by itself. Longer than a sandbox takes to start."""

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, slots=True)
class Capacity:
    """What sandboxes may be promised on this machine, in bytes, and how a sandbox counts."""

    memory_bytes: int
    headroom_bytes: int = 0
    overcommit: float = 100.0

    @classmethod
    def from_settings(cls, settings: Settings) -> "Capacity":
        """The memory of this machine, or of the container that the process is in, less the headroom."""
        headroom = settings.sandbox_headroom_mb * MIB
        return cls(max(0, machine_memory() - headroom), headroom, settings.sandbox_overcommit)

    def counted(self, limits: Limits) -> int:
        """Bytes that a sandbox with these limits is promised."""
        default = Limits()
        usual = default.memory_bytes + default.disk_bytes
        asked = limits.memory_bytes + limits.disk_bytes
        return int(min(asked, usual) / self.overcommit) + max(0, asked - usual)


class Admission:
    """Keeps the account of one machine. ``node``: the machine's id, None for drivers that place sandboxes themselves."""

    def __init__(self, node: str | None, capacity: Capacity) -> None:
        self._node = node
        self._capacity = capacity

    async def admit(self, session: AsyncSession, sandbox_id: str, limits: Limits, *, alive_within: timedelta) -> None:
        """Promise a sandbox its memory, in the caller's transaction; :func:`repository.free_promise` takes it back.

        Raises :class:`NoRoomForSandbox` (retryable) while too much of this machine's memory is promised or used, and
        :class:`SandboxTooLarge` when neither this machine nor another one alive could ever hold the sandbox.
        """
        if self._node is None:
            return
        needed = self._capacity.counted(limits)
        await repository.lock_node(session, self._node, self._capacity.memory_bytes)
        if needed > self._capacity.memory_bytes:
            largest = await repository.largest_node(session, alive_within)
            if needed > largest:
                raise SandboxTooLarge(
                    f"A sandbox with {limits.memory_bytes // MIB} MB of memory and {limits.disk_bytes // MIB} MB of disk "
                    f"counts {_mb(needed)}, and no machine has more than {_mb(largest)} for sandboxes. Ask for "
                    "less in environment.resources, or add memory.",
                    needed_bytes=needed,
                    capacity_bytes=largest,
                )
        promised = await repository.promised_bytes(session, self._node)
        free = min(self._capacity.memory_bytes - promised, available_memory() - self._capacity.headroom_bytes)
        if needed > free:
            raise NoRoomForSandbox(
                f"The sandbox waits for memory: it counts {_mb(needed)}, and the machine has {_mb(max(0, free))} free of "
                f"{_mb(self._capacity.memory_bytes)} for sandboxes. It starts when others end.",
                needed_bytes=needed,
                free_bytes=max(0, free),
                capacity_bytes=self._capacity.memory_bytes,
            )
        await repository.add_promise(session, sandbox_id, self._node, needed)


def machine_memory() -> int:
    """Bytes of memory of this machine, or of the container that the process is in when that has less."""
    limits = [_meminfo("MemTotal")]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such hierarchy, or "max"
            continue
    return min(limits)


def available_memory() -> int:
    """Bytes that processes can still take without swapping, as the kernel estimates it."""
    return _meminfo("MemAvailable")


def _meminfo(name: str) -> int:
    for line in _MEMINFO.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    msg = f"{_MEMINFO} has no {name}"
    raise OSError(msg)


def _mb(size: int) -> str:
    return f"{size // MIB} MB"
