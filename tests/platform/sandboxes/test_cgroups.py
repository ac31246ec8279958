"""What is written where, for both versions of control groups; the kernel's part is tested in ``test_limits``."""

from pathlib import Path

import pytest

from journeyman.platform.sandboxes import cgroups
from journeyman.platform.sandboxes.cgroups import Hierarchy
from journeyman.platform.sandboxes.port import GIB, Limits

LIMITS = Limits(memory_bytes=GIB, disk_bytes=2 * GIB, cpus=1.5, pids=100)


def test_version_2(tmp_path: Path):
    group = Hierarchy(2, dict.fromkeys(("memory", "pids", "cpu"), str(tmp_path))).create("g", LIMITS)
    assert group.directories == [f"{tmp_path}/g"]
    assert group.joins == [f"{tmp_path}/g/cgroup.procs"]
    assert (group.oom_file, group.stat_file, group.stat_key) == (
        f"{tmp_path}/g/memory.events",
        f"{tmp_path}/g/memory.stat",
        "anon",
    )
    written = {path.name: path.read_text() for path in (tmp_path / "g").iterdir()}
    assert written == {
        "memory.max": str(3 * GIB),
        "memory.swap.max": "0",
        "pids.max": "116",
        "cpu.max": "30000 20000",
    }


def test_version_1(tmp_path: Path):
    parents = {name: str(tmp_path / name) for name in ("memory", "pids", "cpu")}
    group = Hierarchy(1, parents).create("g", LIMITS)
    assert group.directories == [f"{tmp_path}/{name}/g" for name in parents]
    assert group.stat_key == "total_rss"
    assert (tmp_path / "cpu/g/cpu.cfs_quota_us").read_text() == "30000"
    assert (tmp_path / "memory/g/memory.limit_in_bytes").read_text() == str(3 * GIB)


def controllers(directory: Path, available: str, enabled: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.controllers").write_text(available)
    (directory / "cgroup.subtree_control").write_text(enabled)


class TestDetectVersion2:
    def test_the_nearest_with_all_controllers(self, tmp_path: Path):
        controllers(tmp_path, "cpu memory pids", "cpu memory pids")
        controllers(tmp_path / "user", "cpu memory pids io", "cpu memory pids")
        controllers(tmp_path / "user/scope", "memory pids", "")
        found = cgroups._detect_v2(str(tmp_path), "/user/scope")
        assert found is not None
        assert set(found.parents.values()) == {str(tmp_path / "user")}

    def test_controllers_are_enabled_where_that_is_allowed(self, tmp_path: Path):
        controllers(tmp_path, "cpu memory pids", "")
        found = cgroups._detect_v2(str(tmp_path), "/")
        assert found is not None
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"

    def test_none_without_controllers(self, tmp_path: Path):
        controllers(tmp_path, "memory", "memory")
        assert cgroups._detect_v2(str(tmp_path), "/") is None

    def test_nothing_outside_of_the_mount(self, tmp_path: Path):
        controllers(tmp_path, "cpu memory pids", "cpu memory pids")
        (tmp_path / "mount").mkdir()
        assert cgroups._detect_v2(str(tmp_path / "mount"), "/") is None


def test_own_groups(monkeypatch: pytest.MonkeyPatch):
    text = "8:pids:/a\n4:cpu,cpuacct:/b/c:d\n0::/v2\n"
    monkeypatch.setattr(Path, "read_text", lambda _self: text)
    assert cgroups._own_groups() == {"pids": "/a", "cpu": "/b/c:d", "cpuacct": "/b/c:d", "v2": "/v2"}


def test_remove_is_content_with_nothing(tmp_path: Path):
    (tmp_path / "g").mkdir()
    cgroups.remove([str(tmp_path / "g"), str(tmp_path / "none")])
    assert not (tmp_path / "g").exists()
