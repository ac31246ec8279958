"""Running things in sandboxes, for tests."""

import uuid

from journeyman.platform.sandboxes.port import MIB, ExecRequest, ExecResult, Limits, Sandbox, SandboxSpec

SMALL = Limits(memory_bytes=192 * MIB, cpus=1.0, pids=48, disk_bytes=32 * MIB, open_files=128)
"""Small, so that attacks reach their end soon."""


class Bare:
    """How sandboxes of a claim are made when nothing is to be in them."""

    def spec(self, sandbox_id: str) -> SandboxSpec:
        return SandboxSpec(sandbox_id, limits=SMALL, lease_s=300)

    async def provision(self, sandbox: Sandbox) -> bool:
        return False


async def shell(sandbox: Sandbox, command: str, **options) -> ExecResult:
    """Run a command under an id of its own."""
    return await sandbox.run(ExecRequest(uuid.uuid4().hex, command, **options))


async def python(sandbox: Sandbox, source: str, **options) -> ExecResult:
    """Run a Python program inside."""
    path = f"/tmp/{uuid.uuid4().hex}.py"
    await sandbox.write_file(path, source.encode())
    return await shell(sandbox, f"exec python3 {path}", **options)
