"""Sandboxes that use more than they may: the attack ends, the agent answers all the while, and neighbours notice nothing."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from journeyman.platform.sandboxes import enforcement
from journeyman.platform.sandboxes.cgroups import Hierarchy
from journeyman.platform.sandboxes.errors import LimitsNotEnforced
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import ExecRequest, Limits, Sandbox, SandboxDriver, SandboxSpec
from support.sandboxes import SMALL, python, shell
from support.waiting import until


@asynccontextmanager
async def answering(sandbox: Sandbox) -> AsyncIterator[list[float]]:
    """Ask the agent all the time; how long each answer took."""
    times: list[float] = []

    async def ask() -> None:
        while True:
            started = time.monotonic()
            await sandbox.ping()
            times.append(time.monotonic() - started)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(ask())
    try:
        yield times
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert times
        assert max(times) < 5


async def test_report_says_that_all_limits_hold(driver: SandboxDriver):
    report = await driver.report()
    assert report.unenforced == []
    assert {limit.name for limit in report.limits} == {"memory", "cpus", "pids", "disk", "open_files"}


async def test_fork_bomb(sandbox: Sandbox):
    async with answering(sandbox):
        bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
        running = asyncio.create_task(python(sandbox, bomb, timeout_s=1.5))
        await until(lambda: _count(sandbox, 20))
        # A command can be started all the same; what it needs to fork for fails until the bomb is gone.
        assert (await shell(sandbox, "echo here")).output == b"here\n"
        result = await running
    assert result.timed_out
    assert result.pids_hit
    assert int((await shell(sandbox, "ls /proc | grep -c '^[0-9]'")).output) < 6


async def test_shell_fork_bomb(sandbox: Sandbox):
    async with answering(sandbox):
        result = await shell(sandbox, ":(){ :|:& };:; sleep 60", timeout_s=1)
    assert result.timed_out or result.exit_code is not None
    await sandbox.kill(result.exec_id)

    async def calm() -> bool:
        listed = await shell(sandbox, "ls /proc | grep -c '^[0-9]'")
        return listed.exit_code == 0 and int(listed.output) < 6

    await until(calm)


async def test_threads_count_as_well(sandbox: Sandbox):
    program = (
        "import threading\n"
        "stop = threading.Event()\n"
        "started = 0\n"
        "try:\n"
        "    for _ in range(500):\n"
        "        threading.Thread(target=stop.wait).start()\n"
        "        started += 1\n"
        "except RuntimeError:\n"
        "    pass\n"
        "print(started)\n"
        "stop.set()\n"
    )
    assert 10 < int((await python(sandbox, program)).output) < SMALL.pids


async def test_running_out_of_processes_is_told(sandbox: Sandbox):
    """With the command that ran into it, and with those beside it; not with later ones, nor well below the limit."""
    beside = asyncio.create_task(shell(sandbox, "read -t 30 < <(sleep 30)", timeout_s=3))
    fill = "for n in $(seq {}); do sleep 2 & done; wait"
    assert (await shell(sandbox, fill.format(SMALL.pids // 2), timeout_s=20)).pids_hit is False
    assert (await shell(sandbox, fill.format(SMALL.pids * 2), timeout_s=4)).pids_hit is True
    assert (await beside).pids_hit is True or (await beside).duration_s < 2.5
    assert (await shell(sandbox, "sleep 0.3")).pids_hit is False


async def test_memory_hog(sandbox: Sandbox):
    async with answering(sandbox):
        result = await python(sandbox, "data = []\nwhile True:\n    data.append(bytearray(1 << 20))\n", timeout_s=30)
    # Killed for memory, or refused more of it: a resource limit is all that some machines have.
    assert result.oom_killed or b"MemoryError" in result.output
    assert result.exit_code != 0
    assert (await shell(sandbox, "echo fine")).output == b"fine\n"


async def test_memory_of_many_processes_counts_together(sandbox: Sandbox):
    each = SMALL.memory_bytes // 4
    program = (
        "import os, time\n"
        "for _ in range(7):\n"
        "    if os.fork() == 0:\n"
        f"        data = bytearray({each})\n"
        f"        for at in range(0, {each}, 4096):\n"
        "            data[at] = 1\n"
        "        time.sleep(30)\n"
        "        os._exit(0)\n"
        "for _ in range(7):\n"
        "    _, status = os.wait()\n"
        "    print(os.waitstatus_to_exitcode(status), flush=True)\n"
        "    if status:\n"
        "        break\n"
    )
    async with answering(sandbox):
        result = await python(sandbox, program, timeout_s=15)
    assert result.oom_killed
    assert b"-9" in result.output


async def test_memory_does_not_hide_in_files_of_no_directory(sandbox: Sandbox):
    program = (
        "import os\n"
        "kept = []\n"
        "while True:\n"
        "    kept.append(os.memfd_create('x'))\n"
        "    os.write(kept[-1], bytes(1 << 23))\n"
        "    if len(kept) > 100:\n"
        "        print('escaped')\n"
        "        break\n"
    )
    result = await python(sandbox, program, timeout_s=20)
    assert b"escaped" not in result.output


async def test_disk_fill(sandbox: Sandbox):
    async with answering(sandbox):
        result = await shell(
            sandbox, "head -c 1G /dev/zero > big; dd if=/dev/zero of=/tmp/more bs=1M count=1; df -k . | tail -1"
        )
    assert result.output.count(b"No space left") >= 1
    assert result.disk_full
    assert not result.oom_killed
    used = int((await shell(sandbox, "du -sk /workspace | cut -f1")).output)
    assert used <= SMALL.disk_bytes // 1024
    # Everything writable shares the quota, also shared memory.
    assert (await shell(sandbox, "head -c 2M /dev/zero > /dev/shm/x")).exit_code != 0
    assert (await shell(sandbox, "rm big")).disk_full is False
    assert (await shell(sandbox, "head -c 2M /dev/zero > /dev/shm/x")).exit_code == 0


async def test_inode_fill(sandbox: Sandbox):
    program = (
        "import os\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        os.close(os.open(f'/tmp/{count}', os.O_CREAT))\n"
        "        count += 1\n"
        "except OSError as error:\n"
        "    print(error.errno, count)\n"
    )
    result = await python(sandbox, program)
    number, count = map(int, result.output.split())
    assert number == 28
    assert count < 10_000
    assert result.disk_full
    await shell(sandbox, "cd /tmp && ls | head -20 | xargs rm -f")
    await sandbox.write_file("/workspace/again", b"x")


async def test_file_size_and_open_files(sandbox: Sandbox):
    assert (await shell(sandbox, f"truncate -s {SMALL.disk_bytes * 2} sparse")).exit_code != 0
    program = "import os\nfds = []\ntry:\n    while True:\n        fds.append(os.open('/dev/null', 0))\nexcept OSError:\n    print(len(fds))\n"
    assert 50 < int((await python(sandbox, program)).output) < SMALL.open_files


async def test_no_core_dumps(sandbox: Sandbox):
    await shell(sandbox, "kill -SEGV $$")
    assert await sandbox.list_files() == []


async def test_endless_output(sandbox: Sandbox):
    async with answering(sandbox):
        result = await shell(sandbox, "yes", timeout_s=1.5, output_limit=100_000)
    assert result.timed_out
    assert result.truncated
    assert result.total_bytes > 1_000_000
    assert len(result.output) < 100_200


async def test_slow_reader(sandbox: Sandbox):
    """A reader that cannot keep up misses the middle, and holds up nobody."""
    seen: list[int] = []

    def slow(offset: int, data: bytes) -> None:
        seen.append(offset)
        if len(seen) < 20:
            time.sleep(0.03)

    request_time = time.monotonic()
    result = await sandbox.run(_request("head -c 200M /dev/zero; echo end", output_limit=64 * 1024, timeout_s=30), slow)
    assert result.exit_code == 0
    assert result.output.endswith(b"end\n")
    assert time.monotonic() - request_time < 20


async def test_cpu_hog_is_held_to_its_share(driver: SandboxDriver):
    half = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=replace(SMALL, cpus=1.0)))
    program = (
        "import os, time\n"
        "children = []\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        end = time.monotonic() + 1.5\n"
        "        while time.monotonic() < end:\n"
        "            pass\n"
        "        os._exit(0)\n"
        "for _ in range(3):\n"
        "    os.wait()\n"
        "times = os.times()\n"
        "print(times.children_user + times.children_system)\n"
    )
    async with answering(half):
        result = await python(half, program)
    assert float(result.output) < 1.5 * 1.25
    await driver.release(half.id)


class TestEnforcement:
    """What is reported and refused where control groups are missing."""

    def test_without_control_groups(self):
        report = enforcement.report(None, Limits(), None, privileged=False)
        assert report.unenforced == []
        assert {limit.how for limit in report.limits} >= {"CPU affinity", "resource limit in a user namespace"}
        assert enforcement.resource_limits(None, Limits())["RLIMIT_DATA"] == Limits().memory_bytes
        assert len(enforcement.affinity(None, Limits(cpus=1), "a")) == 1

    def test_less_than_a_cpu_needs_a_group(self):
        assert enforcement.report(None, Limits(cpus=0.5), None, privileged=False).unenforced == ["cpus"]

    def test_nothing_holds_where_no_sandbox_can_be_made(self):
        report = enforcement.report(Hierarchy(2, {"memory": "/x"}), Limits(), "no namespaces", privileged=True)
        assert len(report.unenforced) == 5
        assert all(not each.enforced for each in report.isolation)

    async def test_unenforced_limits_are_refused_unless_allowed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("journeyman.platform.sandboxes.cgroups.detect", lambda: None)
        wanted = SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=replace(SMALL, cpus=0.5))
        strict = LocalSandboxDriver(tmp_path / "strict")
        with pytest.raises(LimitsNotEnforced, match="cpus") as caught:
            await strict.lease(wanted)
        assert caught.value.details["limits"] == ["cpus"]
        assert await strict.list_ids() == []
        lenient = LocalSandboxDriver(tmp_path / "lenient", allow_unenforced_limits=True)
        sandbox = await lenient.lease(wanted)
        assert (await shell(sandbox, "echo runs; nproc")).output == b"runs\n1\n"
        await lenient.release(sandbox.id)

    async def test_limits_hold_without_control_groups(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("journeyman.platform.sandboxes.cgroups.detect", lambda: None)
        driver = LocalSandboxDriver(tmp_path / "root")
        sandbox = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))
        await test_fork_bomb(sandbox)
        await test_memory_hog(sandbox)
        await test_memory_does_not_hide_in_files_of_no_directory(sandbox)
        await test_memory_of_many_processes_counts_together(sandbox)
        assert (await shell(sandbox, "taskset -p 3 $$")).exit_code != 0
        await driver.release(sandbox.id)

    async def test_groups_are_removed_with_their_sandbox(self, driver: SandboxDriver, sandbox_root: Path):
        sandbox = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))
        written = sandbox_root / sandbox.id / "groups.json"
        groups = json.loads(written.read_text()) if written.exists() else []
        assert all(Path(group).is_dir() for group in groups)
        await driver.release(sandbox.id)
        assert not any(Path(group).exists() for group in groups)


def _request(command: str, **options):
    return ExecRequest(uuid.uuid4().hex, command, **options)


async def _count(sandbox: Sandbox, least: int) -> bool:
    """Whether so many processes run, counted without starting one that could fail."""
    result = await shell(sandbox, "set -- /proc/[0-9]*; echo $#")
    return result.exit_code == 0 and int(result.output or b"0") >= least
