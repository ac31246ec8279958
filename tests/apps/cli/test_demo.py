"""The demo command; the stack that it starts is the fake server, the rest is as it is."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from journeyman.apps.cli import demo as command
from journeyman.apps.embedded.processes import start_ticks_of
from journeyman.apps.exits import CommandError
from journeyman.platform import demos
from support.fake_rest import KEY, TASK, Server

Run = Any


def test_without_a_name_the_demos_are_listed(bare: Run) -> None:
    result = bare("demo")
    assert result.code == 0
    for demo in demos.catalog():
        assert demo.slug in result.out


def test_an_unknown_demo_names_those_there_are(bare: Run) -> None:
    result = bare("demo", "nope")
    assert result.code == 2
    assert "fix-failing-test" in result.err


def test_on_a_named_server(run: Run, server: Server) -> None:
    result = run("demo", "fix-failing-test")
    assert result.code == 0
    (body,) = server.bodies("POST", "/v1/tasks")
    assert body["workspace"] == {"source": "archive", "upload_id": "upl_1"}
    assert body["acceptance"]
    for text in ("scripted answers", "Fix the sum", "What changed", "+new", "✓ passed", f"journeyman show {TASK}"):
        assert text in result.out


class Commands:
    """Stands in for ``journeyman up --detach`` and ``down``: writes and removes what the supervisor does."""

    def __init__(self, home: Path, server: Server) -> None:
        self.home = home
        self.server = server
        self.ran: list[str] = []

    def __call__(self, *arguments: str, check: bool = True) -> None:
        self.ran.append(" ".join(arguments))
        if arguments[0] == "up":
            (self.home / "admin.key").write_text(KEY)
            pid = os.getpid()
            state = {"pid": pid, "start_ticks": start_ticks_of(pid), "urls": {"api": self.server.url}}
            (self.home / "stack.json").write_text(json.dumps(state))
        else:
            (self.home / "stack.json").unlink()


@pytest.fixture
def commands(home: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands(home, server)
    monkeypatch.setattr(command, "_journeyman", found)
    return found


def test_a_stack_of_its_own_is_started_and_stopped(bare: Run, commands: Commands) -> None:
    result = bare("demo", "fix-failing-test")
    assert result.code == 0
    assert commands.ran == ["up --detach", "down"]
    assert "journeyman up" in result.out


def test_a_stack_of_its_own_can_be_kept(bare: Run, commands: Commands, server: Server) -> None:
    server.end_as("failed")
    result = bare("demo", "fix-failing-test", "--keep")
    assert result.code == 1
    assert commands.ran == ["up --detach"]
    assert "journeyman down" in result.out


def test_a_task_that_never_had_a_workspace_tells_how_it_ended(bare: Run, commands: Commands, server: Server) -> None:
    server.end_as("errored")
    server.refusals["GET", f"/v1/tasks/{TASK}/diff"] = [(409, {"detail": "The task has no workspace yet."})]
    result = bare("demo", "fix-failing-test")
    assert result.code == 3
    assert "no workspace yet" in result.out
    assert "! errored" in result.out


def test_a_running_stack_is_used_and_left_alone(bare: Run, commands: Commands) -> None:
    commands("up")
    assert bare("demo", "fix-failing-test").code == 0
    assert commands.ran == ["up"]


def test_a_local_stack_has_a_project_for_the_demos(bare: Run, commands: Commands, home: Path, server: Server) -> None:
    commands("up")
    assert bare("demo", "fix-failing-test").code == 0
    assert server.bodies("POST", "/v1/projects") == [{"name": "demo"}]
    file = home / "demo.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert bare("demo", "build-cli-tool").code == 0
    assert len(server.bodies("POST", "/v1/projects")) == 1
    submitted = [headers["Authorization"] for headers in server.headers if "Idempotency-Key" in headers]
    assert submitted == [f"Bearer {server.owner}"] * 2
    # What the demo says to do next works without a word about projects.
    for verb in ("show", "watch", "logs", "artifacts", "diff", "cancel"):
        result = bare(verb, TASK)
        assert result.code == 0, result.err
    missing = bare("show", "task_ffffffffffffffffffffffffffffffff")
    assert missing.code == 2
    # A key that the stack does not know any more is replaced.
    file.write_text("jm_of_another_time\n")
    assert bare("demo", "fix-failing-test").code == 0
    assert file.read_text().strip() == server.owner


def test_a_project_that_was_named_is_the_demos_too(run: Run, home: Path, server: Server) -> None:
    assert run("demo", "fix-failing-test").code == 0
    assert server.bodies("POST", "/v1/projects") == []
    assert not (home / "demo.key").exists()


def test_a_stack_of_its_own_that_is_killed_is_started_again(
    bare: Run, commands: Commands, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.break_after = [5]
    # Not alive at the first look; killed at the second, when the stream broke; alive from then on.
    looks = iter([False, False])
    monkeypatch.setattr(command, "_alive", lambda: next(looks, True))
    monkeypatch.setattr(command, "_RESTART_AFTER_S", 0.0)
    result = bare("demo", "fix-failing-test")
    assert result.code == 0
    assert commands.ran == ["up --detach", "up --detach", "down"]
    assert "starting it again" in result.err


def test_a_stack_that_does_not_start(bare: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: str, check: bool = True) -> None:
        raise CommandError("`journeyman up --detach` failed; the lines above say why.")

    monkeypatch.setattr(command, "_journeyman", fail)
    result = bare("demo", "fix-failing-test")
    assert result.code == 2
    assert "failed; the lines above say why" in result.err
