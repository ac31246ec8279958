"""What an earlier supervisor may have left: its children by pid and start time, and sandboxes."""

import asyncio
from typing import Any

from journeyman.apps.embedded.datadir import DataDirectory
from journeyman.apps.embedded.processes import ProcessIdentity, end_all
from journeyman.platform.kit.settings import Settings
from journeyman.platform.sandboxes.registry import reap

_GRACE_S = 10.0


def recorded_processes(state: dict[str, Any] | None) -> list[ProcessIdentity]:
    """The children that a ``stack.json`` names."""
    parts = (state or {}).get("parts")
    found: list[ProcessIdentity] = []
    for part in parts if isinstance(parts, list) else []:
        pid, ticks = part.get("pid"), part.get("start_ticks")
        if isinstance(pid, int) and isinstance(ticks, int):
            found.append(ProcessIdentity(pid, ticks))
    return found


def end_processes(directory: DataDirectory) -> list[ProcessIdentity]:
    """End the recorded children that still run. Call with the lock held: then they have no supervisor any more."""
    return end_all(recorded_processes(directory.read_state()), _GRACE_S)


async def reap_sandboxes(settings: Settings) -> list[str]:
    """End and remove all local sandboxes below the data directory: without workers nobody uses them."""
    return await asyncio.to_thread(reap, settings.sandbox_dir, set())
