"""How long do snapshots of a workspace with 10,000 files take, changed and unchanged, and merges of two of them?"""

import asyncio
import tempfile
import time
import uuid
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from benchmarks.results import Row, percentile, report
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.checkpoints.merge import merge
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.kit.settings import Settings
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import ExecRequest, Sandbox, SandboxSpec
from journeyman.platform.sandboxes.registry import reap

_T = TypeVar("_T")

FILES = 10_000
ROUNDS = 25
CHANGED = 11
MERGES = 8
MAKE = """
import os
for directory in range(100):
    os.mkdir(f"d{directory}")
    for file in range(100):
        with open(f"d{directory}/f{file}.py", "w") as out:
            out.write(f"# {directory} {file}\\n" + "x = 1\\n" * (file * 3))
"""


async def timed(call: Awaitable[_T]) -> tuple[float, _T]:
    """Milliseconds until a coroutine ends, and its result."""
    started = time.perf_counter()
    result = await call
    return (time.perf_counter() - started) * 1000, result


async def measure(store: S3ObjectStore, sandbox: Sandbox, other: Sandbox) -> list[Row]:
    snapshots, project_id = SnapshotStore(store), new_id("project")
    made = await sandbox.run(ExecRequest("make", "python3 -", stdin=MAKE.encode()))
    assert made.exit_code == 0, made.output
    first, taken = await timed(snapshots.capture(sandbox, project_id, None))
    assert taken.files == FILES
    unchanged, changed = [], []
    for _ in range(ROUNDS):
        took, again = await timed(snapshots.capture(sandbox, project_id, taken.digest))
        assert not again.changed
        unchanged.append(took)
    for number in range(ROUNDS):
        await sandbox.write_file("/workspace/d7/f7.py", f"{number}\n".encode())
        took, taken = await timed(snapshots.capture(sandbox, project_id, taken.digest))
        assert taken.changed
        changed.append(took)
    merged = await merges(snapshots, project_id, sandbox, taken.digest)
    restored, _ = await timed(snapshots.restore(other, project_id, taken.digest))
    assert not (await snapshots.capture(other, project_id, taken.digest)).changed
    return [
        Row(f"unchanged, {FILES} files", "p50", percentile(unchanged, 0.5), "ms", 150),
        Row(f"unchanged, {FILES} files", "p95", percentile(unchanged, 0.95), "ms"),
        Row(f"one of {FILES} files changed", "p50", percentile(changed, 0.5), "ms"),
        Row(f"first snapshot of {FILES} files", "once", first, "ms"),
        Row(f"restore of {FILES} files", "once", restored, "ms"),
        Row(f"merge, {CHANGED} of {FILES} files changed on each side", "p50", percentile(merged, 0.5), "ms", 1000),
        Row(f"merge, {CHANGED} of {FILES} files changed on each side", "p95", percentile(merged, 0.95), "ms"),
    ]


async def merges(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox, base: str) -> list[float]:
    """Both sides change the same files, at other places; afterwards the sandbox is as it was."""
    took = []
    for number in range(MERGES):
        sides = []
        for line in ("1i", "$a"):
            edit = f"sed -i -s '{line} y = {number}' d{number}/f1.py d{number}/f1?.py"
            assert (await sandbox.run(ExecRequest(uuid.uuid4().hex, edit))).exit_code == 0
            sides.append((await snapshots.capture(sandbox, project_id, base)).digest)
            await snapshots.restore(sandbox, project_id, base)
        call = merge(
            snapshots, project_id, base=base, ours=sides[0], theirs=sides[1], ours_label="ours", theirs_label="theirs"
        )
        milliseconds, result = await timed(call)
        assert result.conflicts == ()
        took.append(milliseconds)
    return took


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jm-bench-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        stack = EmbeddedStack(root / "data", parts=(), settings=Settings(data_dir=root / "data"))
        driver = LocalSandboxDriver(root / "sandboxes")
        try:
            await stack.start()
            await stack.add("objects", "bucket")
            store = S3ObjectStore.from_settings(stack.settings)
            one, two = [await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}")) for _ in range(2)]
            rows = await measure(store, one, two)
        finally:
            await asyncio.to_thread(reap, root / "sandboxes", set())
            await driver.close()
            await stack.stop()
    report("snapshot", rows)


if __name__ == "__main__":
    asyncio.run(main())
