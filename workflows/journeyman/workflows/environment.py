"""How sandboxes are made from a task's environment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from journeyman.platform.sandboxes.port import MIB, ExecRequest, Limits, Sandbox, SandboxSpec

LEASE_S = 1800.0
"""Seconds a sandbox lives without being used: a task that pauses longer gets a new one, made from its snapshot."""


def sandbox_spec(sandbox_id: str, environment: Mapping[str, Any]) -> SandboxSpec:
    """The spec for one sandbox of a task with this ``environment`` (as stored with the task)."""
    resources = environment.get("resources") or {}
    defaults = Limits()
    return SandboxSpec(
        sandbox_id=sandbox_id,
        env=dict(environment.get("env") or {}),
        toolset=str(environment.get("toolset") or "python"),
        lease_s=LEASE_S,
        limits=Limits(
            memory_bytes=int(resources["memory_mb"]) * MIB if resources.get("memory_mb") else defaults.memory_bytes,
            cpus=float(resources.get("cpus") or defaults.cpus),
            pids=int(resources.get("pids") or defaults.pids),
            disk_bytes=int(resources["disk_mb"]) * MIB if resources.get("disk_mb") else defaults.disk_bytes,
        ),
    )


SETUP_TIMEOUT_S = 1800.0


class TaskProvisioner:
    """Provisions a task's sandboxes: spec, and the setup commands that run in each of them.

    Setup may write outside the workspace (to the home directory), which no snapshot holds; so it runs in every new sandbox.
    Its changes to the workspace are undone by restoring the snapshot again: those of the first run, at preparation, are in
    the snapshot already.
    """

    def __init__(self, environment: Mapping[str, Any]) -> None:
        self._environment = environment
        self.setup: Sequence[str] = environment.get("setup") or ()

    def spec(self, sandbox_id: str) -> SandboxSpec:
        return sandbox_spec(sandbox_id, self._environment)

    async def provision(self, sandbox: Sandbox) -> bool:
        """Run the setup commands; returns whether there were any. Their results were judged at preparation."""
        for index, command in enumerate(self.setup):
            await sandbox.run(ExecRequest(f"setup_{index}", command, timeout_s=SETUP_TIMEOUT_S))
        return bool(self.setup)


class BareProvisioner:
    """Provisions sandboxes without the task's setup: preparation runs and checks the setup itself."""

    def __init__(self, environment: Mapping[str, Any]) -> None:
        self._environment = environment

    def spec(self, sandbox_id: str) -> SandboxSpec:
        return sandbox_spec(sandbox_id, self._environment)

    async def provision(self, sandbox: Sandbox) -> bool:
        del sandbox
        return False


class FetchProvisioner(BareProvisioner):
    """Provisions sandboxes that fetch a workspace: the task's resources, none of its variables, egress through one proxy.

    ``egress``: socket of the proxy.
    """

    def __init__(self, environment: Mapping[str, Any], egress: Path) -> None:
        super().__init__({**environment, "env": {}})
        self._egress = egress

    def spec(self, sandbox_id: str) -> SandboxSpec:
        return replace(super().spec(sandbox_id), egress=self._egress)
