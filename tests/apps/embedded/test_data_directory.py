"""The data directory: one supervisor, no newer version, nothing for other users."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from journeyman.apps.embedded.datadir import DataDirectory
from journeyman.apps.embedded.errors import DataDirectoryLocked, DataDirectoryUnusable, PortTaken
from journeyman.apps.embedded.ports import choose_port, is_free
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.settings import Settings


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory(tmp_path / "data")
    directory.create()
    yield directory
    directory.unlock()


def test_is_for_its_owner_only(directory: DataDirectory) -> None:
    os.umask(os.umask(0o022))
    directory.secrets()
    assert directory.root.stat().st_mode & 0o777 == 0o700
    assert (directory.root / "secrets.json").stat().st_mode & 0o777 == 0o600
    directory.root.chmod(0o755)
    directory.create()
    assert directory.root.stat().st_mode & 0o777 == 0o700


def test_a_second_supervisor_is_refused_with_the_pid_of_the_first(directory: DataDirectory) -> None:
    directory.lock()
    assert directory.holder() == os.getpid()
    with pytest.raises(DataDirectoryLocked, match=f"pid {os.getpid()}") as caught:
        DataDirectory(directory.root).lock()
    assert caught.value.details["pid"] == os.getpid()
    directory.unlock()
    assert directory.holder() is None
    second = DataDirectory(directory.root)
    second.lock()
    second.unlock()


def test_a_newer_version_is_refused(directory: DataDirectory) -> None:
    directory.check_version()
    assert json.loads((directory.root / "version.json").read_text())["journeyman"] == version("journeyman")
    directory.check_version()
    directory.write("version.json", {"format": 1, "journeyman": "999.1.0"})
    with pytest.raises(DataDirectoryUnusable, match=r"written by Journeyman 999\.1\.0"):
        directory.check_version()
    directory.write("version.json", {"format": 2, "journeyman": version("journeyman")})
    with pytest.raises(DataDirectoryUnusable):
        directory.check_version()
    directory.write("version.json", {"format": 1, "journeyman": "0.0.1"})
    directory.check_version()


def test_data_of_an_unknown_version_is_refused(directory: DataDirectory) -> None:
    (directory.root / "postgres").mkdir()
    (directory.root / "version.json").write_text("{")
    with pytest.raises(DataDirectoryUnusable, match="missing or damaged"):
        directory.check_version()


def test_a_full_disk_is_refused(directory: DataDirectory) -> None:
    directory.check_space(1)
    with pytest.raises(DataDirectoryUnusable, match="MB are free"):
        directory.check_space(shutil.disk_usage(directory.root).total // 1024**2 + 1)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryUnusable, match="cannot be made or written"):
        DataDirectory(tmp_path / "file" / "data").create()


def test_secrets_stay_the_same_and_differ_between_directories(directory: DataDirectory, tmp_path: Path) -> None:
    other = DataDirectory(tmp_path / "other")
    other.create()
    assert directory.secrets() == DataDirectory(directory.root).secrets()
    assert not set(directory.secrets().values()) & set(other.secrets().values())


def test_ports_are_remembered_while_they_are_free(directory: DataDirectory) -> None:
    first = directory.ports(["a", "b"], {})
    assert first["a"] != first["b"]
    assert directory.ports(["a", "b"], {}) == first
    with socket.create_server(("127.0.0.1", first["a"])):
        second = directory.ports(["a", "b"], {})
        assert second["a"] != first["a"]
        assert second["b"] == first["b"]
    preferred = choose_port(set())
    assert directory.ports(["c"], {"c": preferred})["c"] == preferred


def test_stacks_that_start_at_once_choose_different_ports(directory: DataDirectory, tmp_path: Path) -> None:
    other = DataDirectory(tmp_path / "other")
    other.create()
    usual = {name: choose_port(set()) for name in ("api", "gateway")}
    # Nobody listens yet: both still find every port free.
    first, second = directory.ports(usual, usual), other.ports(usual, usual)
    assert first == usual
    assert not set(first.values()) & set(second.values())
    assert not other.claim_port(first["api"])
    directory.unlock()
    assert other.claim_port(first["api"])
    other.unlock()


def test_ports_are_below_those_that_clients_get() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chosen = {choose_port(set()) for _ in range(20)}
    assert all(is_free(port) for port in chosen)
    assert low < 12_000 or max(chosen) < low


async def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        stack = EmbeddedStack(tmp_path / "data", parts=(), settings=Settings(), api_port=port)
        with pytest.raises(PortTaken, match=f"Port {port} is taken"):
            await stack.start()
        assert stack.directory.holder() is None
