"""``journeyman up``, ``status`` and ``down`` as a user runs them, and the platform's own processes under ``kill -9``."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from support.stack import kill_and_wait
from support.stand_ins import running, wait_until


class Cli:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("JOURNEYMAN_")}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "journeyman.apps.cli.main", *arguments, "--data-dir", str(self.data_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self._environment, timeout=170)

    def status(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return report


@pytest.fixture
def cli() -> Iterator[Cli]:
    with tempfile.TemporaryDirectory(prefix="jm-cli-", ignore_cleanup_errors=True) as name:
        cli = Cli(Path(name) / "data")
        yield cli
        cli.run("down")


def pids(report: dict[str, Any]) -> list[int]:
    return [part["pid"] for part in report["parts"] if part["pid"]]


def test_up_status_and_down(cli: Cli) -> None:
    assert cli.run("down").returncode == 0, "nothing to stop is no error"
    assert cli.status()["status"] == "stopped"

    up = cli.run("up", "--detach", "--workers", "1")
    assert up.returncode == 0, up.stderr
    assert "Journeyman is ready: http://127.0.0.1:" in up.stdout
    assert "replay" in up.stdout
    report = cli.status()
    assert report["status"] == "ready"
    assert {part["status"] for part in report["parts"]} == {"ready"}
    assert {limit["name"] for limit in report["sandboxes"]["limits"]} >= {"memory", "pids", "disk"}
    assert httpx.get(f"{report['urls']['api']}/readyz").status_code == 200
    assert "ready" in cli.run("status").stdout

    again = cli.run("up")
    assert again.returncode == 2
    assert f"pid {report['pid']}" in again.stderr

    worker = next(part["pid"] for part in report["parts"] if part["name"] == "worker-1")
    os.kill(worker, signal.SIGSTOP)
    os.kill(report["pid"], signal.SIGKILL)
    wait_until(lambda: not running([worker]))
    assert cli.run("up", "--detach", "--workers", "1").returncode == 0
    second = cli.status()
    assert second["status"] == "ready"
    assert second["urls"] == report["urls"]
    assert running(pids(report)) == []

    assert cli.run("down").returncode == 0
    assert running([second["pid"], *pids(second)]) == []
    assert cli.status()["status"] == "stopped"


def test_up_says_why_it_cannot(cli: Cli) -> None:
    cli.data_dir.mkdir(parents=True)
    (cli.data_dir / "version.json").write_text(json.dumps({"format": 1, "journeyman": "999.0.0"}))
    for arguments in (["up"], ["up", "--detach"]):
        refused = cli.run(*arguments)
        assert refused.returncode in {2, 3}
        assert "written by Journeyman 999.0.0" in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("name", ["api", "gateway", "replay-engine", "worker-1", "fork-server"])
async def test_a_killed_process_of_the_platform_comes_back(full_stack: EmbeddedStack, name: str) -> None:
    await kill_and_wait(full_stack, name, timeout_s=60)
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{full_stack.settings.api_url}/readyz")).status_code == 200
