"""From a task's environment to the spec of its sandboxes."""

from collections.abc import Mapping
from typing import Any

from journeyman.platform.sandboxes.port import Limits, SandboxSpec

LEASE_S = 1800.0
"""Seconds a sandbox lives without being used: a task that pauses longer gets a new one, made from its snapshot."""

_MIB = 1024 * 1024


def sandbox_spec(sandbox_id: str, environment: Mapping[str, Any], *, network: str = "none") -> SandboxSpec:
    """The spec for one sandbox of a task with this ``environment`` (as stored with the task)."""
    resources = environment.get("resources") or {}
    defaults = Limits()
    return SandboxSpec(
        sandbox_id=sandbox_id,
        env=dict(environment.get("env") or {}),
        network="host" if network == "host" else "none",
        toolset=str(environment.get("toolset") or "python"),
        lease_s=LEASE_S,
        limits=Limits(
            memory_bytes=int(resources["memory_mb"]) * _MIB if resources.get("memory_mb") else defaults.memory_bytes,
            cpus=float(resources.get("cpus") or defaults.cpus),
            pids=int(resources.get("pids") or defaults.pids),
            disk_bytes=int(resources["disk_mb"]) * _MIB if resources.get("disk_mb") else defaults.disk_bytes,
        ),
    )
