"""The supervisor as a process: signals, a second one, ``kill -9``, an ordinary user."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from journeyman.apps.embedded.datadir import DataDirectory
from support.stand_ins import grandchildren, journal_lines, running, wait_until

TESTS = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"}


class Supervisor:
    def __init__(self, root: Path, *parts: str, prefix: tuple[str, ...] = ()) -> None:
        self.data, self.journal = root / "data", root / "journal"
        self.journal.touch()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "support.supervise", str(self.data), str(self.journal), *parts],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            cwd=root,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", self.end(signal.SIGTERM)

    def children(self) -> list[int]:
        parts = json.loads((self.data / "stack.json").read_text())["parts"]
        return [part["pid"] for part in parts if part["pid"]]

    def end(self, number: signal.Signals) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="jm-up-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(root: Path, number: signal.Signals) -> None:
    supervisor = Supervisor(root, "stand-in:one", "stand-in:two")
    supervisor.wait_until_ready()
    wait_until(lambda: len(supervisor.children()) == 2)
    children = supervisor.children()
    assert supervisor.end(number)[0] == 0
    assert sorted(journal_lines(supervisor.journal, "stopped")) == ["one", "two"]
    assert running([*children, *grandchildren(supervisor.journal)]) == []
    state = DataDirectory(supervisor.data).read_state()
    assert state is not None
    assert (state["status"], state["urls"]) == ("stopped", {})


def test_a_second_one_is_refused_with_the_pid_of_the_first(root: Path) -> None:
    first = Supervisor(root, "stand-in:one")
    first.wait_until_ready()
    second = Supervisor(root, "stand-in:one")
    code, stderr = second.process.wait(30), second.end(signal.SIGTERM)[1]
    assert code == 1
    assert f"already runs on {first.data} (pid {first.process.pid})" in stderr
    assert DataDirectory(first.data).holder() == first.process.pid
    assert first.end(signal.SIGTERM)[0] == 0


def test_kill_9_leaves_nothing_and_the_next_start_goes_on(root: Path) -> None:
    first = Supervisor(root, "postgres", "objects", "temporal", "vectors", "stand-in:one")
    first.wait_until_ready()
    wait_until(lambda: len(first.children()) == 5)
    children = first.children()
    ports = json.loads((first.data / "ports.json").read_text())
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    second = Supervisor(root, "postgres", "objects", "temporal", "vectors", "stand-in:one")
    second.wait_until_ready()
    wait_until(lambda: len(second.children()) == 5)
    assert not set(children) & set(second.children())
    assert running(children) == []
    assert json.loads((second.data / "ports.json").read_text()) == ports
    children = second.children()
    assert second.end(signal.SIGTERM)[0] == 0
    assert running(children) == []


def test_what_a_dead_supervisor_left_running_is_ended(root: Path) -> None:
    """As where the kernel did not tell the child: the process is found by its pid and start time."""
    first = Supervisor(root, "stand-in:one")
    first.wait_until_ready()
    wait_until(lambda: len(first.children()) == 1)
    assert first.end(signal.SIGTERM)[0] == 0
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        directory = DataDirectory(first.data)
        state = directory.read_state()
        assert state is not None
        ticks = [_start_ticks(process.pid) for process in (left, stranger)]
        part = state["parts"][0]
        state["parts"] = [part | {"pid": left.pid, "start_ticks": ticks[0]}]
        state["parts"] += [part | {"pid": stranger.pid, "start_ticks": ticks[1] - 1}]
        directory.write("stack.json", state)
        second = Supervisor(root, "stand-in:one")
        second.wait_until_ready()
        assert left.wait(5) == -signal.SIGTERM
        assert stranger.poll() is None, "a pid that belongs to somebody else by now was taken for ours"
        second.end(signal.SIGTERM)
    finally:
        for process in (left, stranger):
            process.kill()
            process.wait()


def _start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


ORDINARY = 65534
_SHOW_INTERPRETER = """
set -e
mkdir -p "$1/base"
mount --make-rprivate /
mount --bind "$2" "$1/base"
mount -t tmpfs -o mode=755 none "$3"
mkdir -p "$2"
mount --bind "$1/base" "$2"
shift 3
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"
"""


def _as_ordinary_user(root: Path) -> tuple[str, ...]:
    """A command prefix that runs what follows as nobody, able to read this interpreter wherever it is installed."""
    if os.geteuid() != 0:
        return ()
    if not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("neither an ordinary user nor able to become one: setpriv and unshare are missing")
    base = Path(sys.base_prefix).resolve()
    closed = next((parent for parent in [base, *base.parents] if not parent.stat().st_mode & 0o001), None)
    if closed is None:
        return ("setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", "--no-new-privs")
    if TESTS.is_relative_to(closed):
        pytest.skip(f"the checkout is below {closed}, which only root may enter")
    return ("unshare", "--mount", "sh", "-c", _SHOW_INTERPRETER, "sh", str(root), str(base), str(closed))


def test_an_ordinary_user_can_run_it(root: Path) -> None:
    prefix = _as_ordinary_user(root)
    if prefix:
        os.chown(root, ORDINARY, ORDINARY)
    supervisor = Supervisor(root, "postgres", "temporal", "objects", "embeddings", "vectors", "bucket", prefix=prefix)
    if prefix:
        os.chown(supervisor.journal, ORDINARY, ORDINARY)
    supervisor.wait_until_ready()
    wait_until(lambda: len(supervisor.children()) == 5)
    if prefix:
        assert {os.stat(f"/proc/{pid}").st_uid for pid in supervisor.children()} == {ORDINARY}
    assert supervisor.end(signal.SIGTERM)[0] == 0
