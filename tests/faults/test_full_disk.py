"""The disk of the object store runs full: steps wait for room, and go on once there is some."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.endurance.machine import Machine
from support.oracle import check_on
from support.scripts import shell, simple

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="a small file system of its own takes root"),
]


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@pytest.fixture
async def cramped() -> AsyncIterator[Machine]:
    """A platform whose objects lie on a file system of 48 MB."""
    with tempfile.TemporaryDirectory(prefix="jm-dsk-", ignore_cleanup_errors=True) as root:
        machine = Machine(Path(root))
        machine.make()
        objects = machine.data / "objects"
        objects.mkdir(mode=0o700)
        try:
            mount("-t", "tmpfs", "-o", "size=48m,mode=700", "tmpfs", str(objects))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"nothing can be mounted here: {error.stderr.decode()}")
        try:
            # The directory looks like one that a stack has used; this says which version that was.
            (machine.data / "version.json").write_text('{"format": 1, "journeyman": "0"}')
            await machine.up()
            yield machine
            await machine.down()
        finally:
            subprocess.run(["umount", "-l", str(objects)], check=False)


async def test_a_full_object_store_stops_the_work_and_not_the_task(cramped: Machine) -> None:
    steps = [
        shell("echo 1 >> log"),
        shell("head -c 70000000 /dev/urandom > big"),
        shell("echo 2 >> log"),
    ]
    cramped.write_script({"name": "full", "instruction": "Fill the disk", "threads": simple(*steps)})
    task_id = await cramped.submit(
        instruction="Fill the disk",
        workspace={"source": "none"},
        environment={"resources": {"disk_mb": 512}},
        acceptance=['test "$(cat log)" = "$(seq 2)"', "test $(wc -c < big) = 70000000"],
    )

    # The step that does not fit holds the task up; it neither fails nor goes on without its files.
    async with asyncio.timeout(150):
        before = -1
        while (now := len(await cramped.events(task_id))) < 10 or now != before:
            before = now
            await asyncio.sleep(8)
    assert (await cramped.call("GET", f"/v1/tasks/{task_id}"))["state"] == "running"
    mount("-o", "remount,size=1g", str(cramped.data / "objects"))
    await check_on(cramped, task_id, 200)
