import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from typing import Any

import pytest

from support.fake_rest import KEY, TASK, Server, event

Run = Any


@pytest.mark.parametrize(
    ("state", "verified", "code", "said"),
    [
        ("succeeded", True, 0, "✓ succeeded  in"),
        ("succeeded", False, 0, "✓ succeeded (not verified)"),
        ("failed", False, 1, "the tests still fail"),
        ("errored", False, 3, "! errored"),
        ("cancelled", False, 4, "⊘ cancelled"),
    ],
)
def test_the_exit_code_tells_the_outcome(
    run: Run, server: Server, state: str, verified: bool, code: int, said: str
) -> None:
    server.end_as(state, verified=verified)
    result = run("submit", "Fix it", "--wait")
    assert result.code == code
    assert said in result.out
    assert "replay engine: scripted answers" in result.out
    assert "1,234 tokens, $0.0420" in result.out
    assert f"journeyman diff {TASK}" in result.out


def test_plain_lines_hold_no_escape(run: Run) -> None:
    result = run("watch", TASK)
    assert "● coder      $ pytest -q" in result.out
    assert "\\x1b[32m3 passed" in result.out
    assert "\x1b" not in result.out
    assert "\x07" not in result.out


def test_broken_streams_lose_and_repeat_nothing(run: Run, server: Server) -> None:
    server.break_after = [3, 0, 4, 1]
    result = run("watch", TASK, "--json")
    assert result.code == 0
    assert [json.loads(line)["seq"] for line in result.out.splitlines()] == list(range(1, 14))
    resumed = [int(headers["Last-Event-ID"]) for headers in server.headers if "Last-Event-ID" in headers]
    assert resumed == [0, 3, 3, 7, 8]
    assert "connection lost" in result.err
    assert "connection is back" in result.err


def test_a_server_that_stumbles_is_tried_again(run: Run, server: Server) -> None:
    path = f"/v1/tasks/{TASK}/events/stream"
    server.refusals["GET", path] = [(503, {"detail": "Starting."}), (500, "<html>")]
    assert run("watch", TASK).code == 0
    server.refusals["GET", path] = [(404, {"detail": "Gone.", "request_id": "req_9"})]
    result = run("watch", TASK)
    assert result.code == 2
    assert "Gone." in result.err


def test_a_timeout_ends_the_watching_only(run: Run, server: Server) -> None:
    server.events = server.events[:8]
    server.hold_open = True
    server.task["state"] = "running"
    result = run("watch", TASK, "--timeout", "0.2")
    # Signs of life arrive between events; the clock is looked at then.
    assert result.code == 5
    assert "the task goes on" in result.err
    assert ("POST", f"/v1/tasks/{TASK}/cancel") not in {(how, where) for how, where, _ in server.requests}


@pytest.mark.parametrize(
    ("reason", "said"), [("user", "the task waits on."), ("model_unavailable", "the task goes on.")]
)
def test_who_leaves_is_told_whether_the_task_goes_on(run: Run, server: Server, reason: str, said: str) -> None:
    server.events = [*server.events[:5], event(6, "task.paused", {"reason": reason})]
    server.hold_open = True
    server.task["state"] = "running"
    result = run("watch", TASK, "--timeout", "0.2")
    assert result.code == 5
    assert said in result.err


def test_a_pause_can_end_the_watching(run: Run, server: Server) -> None:
    server.events = [*server.events[:5], event(6, "task.paused", {"reason": "budget", "detail": "limit reached"})]
    server.hold_open = True
    result = run("watch", TASK, "--stop-on-pause")
    assert result.code == 5
    assert "paused: budget" in result.out
    assert "limit reached" in result.out


def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "JOURNEYMAN_URL": server.url, "JOURNEYMAN_API_KEY": KEY, "TERM": "xterm", "COLUMNS": "100"}


COMMAND = [sys.executable, "-m", "journeyman.apps.cli.main"]


def _take_terminal() -> None:
    """Make the terminal on standard input the one that the process is controlled from, as a shell does."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def on_terminal(server: Server, *arguments: str) -> tuple[int, str]:
    """Run the command on a pseudo-terminal; returns its exit code and what a terminal would have got."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment(server)
    ) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
        os.close(master)
        return process.wait(), shown.decode("utf-8", "replace")


def test_the_live_view_shows_plan_steps_and_banner(server: Server) -> None:
    code, shown = on_terminal(server, "watch", TASK)
    assert code == 0
    for text in ("Repair the sum", "Fix the sum", "$ pytest -q", "replay engine", "Receipts", "succeeded"):
        assert text in shown
    assert "\\x1b[32m3 passed" in shown
    assert "\x07" not in shown


def test_ctrl_c_in_the_live_view_leaves_a_whole_frame_and_the_terminal_as_it_was(server: Server) -> None:
    server.events = server.events[:8]
    server.hold_open = True
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    with subprocess.Popen(
        [*COMMAND, "watch", TASK],
        stdin=slave, stdout=slave, stderr=slave, env=environment(server), start_new_session=True, preexec_fn=_take_terminal,
    ) as process:  # fmt: skip
        shown = b""
        while b"exit 0" not in shown:
            shown += os.read(master, 65536)
        assert not termios.tcgetattr(slave)[3] & termios.ECHO
        os.write(master, b"\x03")
        while b"stop it" not in shown:
            shown += os.read(master, 65536)
        assert process.wait() == 130
    assert termios.tcgetattr(slave) == before
    os.close(slave)
    os.close(master)
    text = shown.decode("utf-8", "replace")
    assert "^C" not in text
    # What is said last stands below the frame.
    assert text.rindex("╯") < text.index("No longer watching")
    assert "waits for the model" not in text[text.rindex("╭") :]


def test_ctrl_c_leaves_the_task_alone(server: Server) -> None:
    server.events = server.events[:8]
    server.hold_open = True
    with subprocess.Popen(
        [*COMMAND, "watch", TASK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(server)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if b"exit 0" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().decode()
        assert process.wait() == 130
    assert "the task goes on" in rest
    assert not [path for how, path, _ in server.requests if how == "POST"]


def test_a_reader_that_leaves_is_no_error(server: Server) -> None:
    server.events = [event(n, "agent.message", {"text": "x" * 500}) for n in range(1, 400)]
    with subprocess.Popen(
        [*COMMAND, "logs", TASK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(server)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait() == 0
    assert errors == b""


def test_a_stack_that_comes_back_elsewhere_is_found(
    bare: Run, server: Server, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "admin.key").write_text(KEY)
    stack = home / "stack.json"
    stack.write_text(json.dumps({"urls": {"api": server.url}}))
    server.break_after = [4]
    moved = threading.Event()

    from journeyman.apps.cli import client

    real = client.Api._find_again

    def find_again(self: client.Api) -> None:
        # The same server under another name stands for a stack on other ports.
        stack.write_text(json.dumps({"urls": {"api": server.url.replace("127.0.0.1", "localhost")}}))
        real(self)
        moved.set()

    monkeypatch.setattr(client.Api, "_find_again", find_again)
    result = bare("watch", TASK, "--json")
    assert result.code == 0
    assert moved.is_set()
    assert [json.loads(line)["seq"] for line in result.out.splitlines()] == list(range(1, 14))
    assert any(headers["Host"].startswith("localhost") for headers in server.headers)
