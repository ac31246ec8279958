"""How long does a sandbox take to lease, and a command to run, through the port from asyncio?"""

import asyncio
import tempfile
import time
import uuid
from pathlib import Path

from benchmarks.results import Row, percentile, report
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import ExecRequest, SandboxSpec
from journeyman.platform.sandboxes.registry import reap

LEASES = 30
COMMANDS = 200
BURST = 10


async def timed(call) -> float:
    """Milliseconds until a coroutine ends."""
    started = time.perf_counter()
    await call
    return (time.perf_counter() - started) * 1000


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jm-bench-") as directory:
        root = Path(directory)
        driver = LocalSandboxDriver(root)
        try:
            await driver.report()  # examines the machine, once a process
            names = [f"sbx_{uuid.uuid4().hex}" for _ in range(LEASES)]
            leases = [await timed(driver.lease(SandboxSpec(name))) for name in names]
            sandbox = await driver.connect(names[0])
            await sandbox.run(ExecRequest("warm", "true"))
            commands = [await timed(sandbox.run(ExecRequest(f"c{n}", "true"))) for n in range(COMMANDS)]
            data = bytes(100_000)
            writes = [await timed(sandbox.write_file(f"/workspace/{n}", data)) for n in range(50)]
            reads = [await timed(sandbox.read_file(f"/workspace/{n}")) for n in range(50)]
            releases = [await timed(driver.release(name)) for name in names]
            burst = [f"sbx_{uuid.uuid4().hex}" for _ in range(BURST)]
            together = await timed(asyncio.gather(*(driver.lease(SandboxSpec(name)) for name in burst)))
        finally:
            await asyncio.to_thread(reap, root, set())
            await driver.close()
    report(
        "sandbox",
        [
            Row("lease", "p50", percentile(leases, 0.5), "ms", 60),
            Row("lease", "p95", percentile(leases, 0.95), "ms"),
            Row(f"{BURST} leases at once", "until the last", together, "ms"),
            Row("exec of true", "p50", percentile(commands, 0.5), "ms", 15),
            Row("exec of true", "p95", percentile(commands, 0.95), "ms"),
            Row("write of 100 kB", "p50", percentile(writes, 0.5), "ms"),
            Row("read of 100 kB", "p50", percentile(reads, 0.5), "ms"),
            Row("release", "p50", percentile(releases, 0.5), "ms"),
        ],
    )


if __name__ == "__main__":
    asyncio.run(main())
