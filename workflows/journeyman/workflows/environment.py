"""From a task's environment to the spec of its sandboxes."""

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


class TaskFurnishing:
    """How a task's sandboxes are made: their spec, and the setup commands that each of them starts with.

    Setup may leave things outside the workspace (in the home directory, say), which no snapshot holds; so it runs in
    every new sandbox. Whatever it does to the workspace is undone by restoring the snapshot again: the first run, at
    preparation, is the one whose changes stay.
    """

    def __init__(self, environment: Mapping[str, Any]) -> None:
        self._environment = environment
        self.setup: Sequence[str] = environment.get("setup") or ()

    def spec(self, sandbox_id: str) -> SandboxSpec:
        return sandbox_spec(sandbox_id, self._environment)

    async def furnish(self, sandbox: Sandbox) -> bool:
        """Run the setup commands; returns whether there were any. Their results were judged at preparation."""
        for index, command in enumerate(self.setup):
            await sandbox.run(ExecRequest(f"setup_{index}", command, timeout_s=SETUP_TIMEOUT_S))
        return bool(self.setup)


class BareFurnishing:
    """A sandbox without the task's setup: for preparation, which judges the setup."""

    def __init__(self, environment: Mapping[str, Any]) -> None:
        self._environment = environment

    def spec(self, sandbox_id: str) -> SandboxSpec:
        return sandbox_spec(sandbox_id, self._environment)

    async def furnish(self, sandbox: Sandbox) -> bool:
        del sandbox
        return False


class FetchFurnishing(BareFurnishing):
    """A sandbox that fetches a workspace: the task's resources, none of its variables, and one way out."""

    def __init__(self, environment: Mapping[str, Any], egress: Path) -> None:
        super().__init__({**environment, "env": {}})
        self._egress = egress

    def spec(self, sandbox_id: str) -> SandboxSpec:
        return replace(super().spec(sandbox_id), egress=self._egress)
