"""A worker for tests that kill it: leases a sandbox, starts a command in it, and says so."""

import asyncio
import sys
from pathlib import Path

from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import MIB, ExecRequest, Limits, SandboxSpec


async def main(root: str, sandbox_id: str, exec_id: str, command: str) -> None:
    driver = LocalSandboxDriver(Path(root))
    sandbox = await driver.lease(SandboxSpec(sandbox_id, limits=Limits(memory_bytes=192 * MIB, disk_bytes=32 * MIB)))
    started = False

    def tell(_offset: int, _data: bytes) -> None:
        nonlocal started
        if not started:
            started = True
            print("started", flush=True)

    await sandbox.run(ExecRequest(exec_id, command), tell)
    print("ended", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
