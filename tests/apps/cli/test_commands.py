import json
from pathlib import Path
from typing import Any

import pytest

from journeyman.apps.cli.suggestions import command
from journeyman.apps.cli.tasks import place_for
from journeyman.apps.exits import CommandError
from support.fake_rest import KEY, TASK, Server

Run = Any


def test_submit_prints_the_id_and_nothing_else(run: Run, server: Server, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.py").write_text("x")
    result = run(
        "submit", "Fix it", "-w", str(tmp_path / "work"), "-a", "pytest -q", "--setup", "true", "--title", "T",
        "--budget-time", "1h30m", "--budget-tokens", "1000", "--tier", "fast", "--env", "A=b=c", "--idempotency-key", "once",
    )  # fmt: skip
    assert (result.code, result.out) == (0, f"{TASK}\n")
    assert f"journeyman watch {TASK}" in result.err
    (body,) = server.bodies("POST", "/v1/tasks")
    assert body == {
        "instruction": "Fix it",
        "title": "T",
        "model_tier": "fast",
        "acceptance": ["pytest -q"],
        "environment": {"setup": ["true"], "env": {"A": "b=c"}},
        "budget": {"max_tokens": 1000, "max_wall_s": 5400},
        "workspace": {"source": "archive", "upload_id": "upl_1"},
    }
    upload = next(body for how, path, body in server.requests if path == "/v1/uploads")
    assert upload.startswith(b"\x1f\x8b")
    assert [headers.get("Idempotency-Key") for headers in server.headers][-1] == "once"


def test_a_submit_is_repeated_under_one_key(run: Run, server: Server) -> None:
    server.refusals["POST", "/v1/tasks"] = [(503, {"detail": "Starting.", "retryable": True}), (502, "<html>")]
    result = run("submit", "Fix it", "--git", "https://example.org/x.git", "--ref", "main", "--json")
    assert result.code == 0
    assert json.loads(result.out)["id"] == TASK
    keys = {headers["Idempotency-Key"] for headers in server.headers if "Idempotency-Key" in headers}
    assert len(keys) == 1
    bodies = server.bodies("POST", "/v1/tasks")
    assert len(bodies) == 3
    assert bodies[0]["workspace"] == {"source": "git", "url": "https://example.org/x.git", "ref": "main"}


def test_a_task_file_and_options_over_it(run: Run, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    file.write_text(json.dumps({"instruction": "From the file", "title": "Old", "environment": {"toolset": "python"}}))
    assert run("submit", "-f", str(file), "--title", "New", "--setup", "make").code == 0
    (body,) = server.bodies("POST", "/v1/tasks")
    assert body["instruction"] == "From the file"
    assert body["title"] == "New"
    assert body["environment"] == {"toolset": "python", "setup": ["make"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "There is no instruction"),
        (["  "], "There is no instruction"),
        (["x", "--ref", "main"], "--git URL"),
        (["x", "-w", ".", "--git", "https://x/y"], "exclude each other"),
        (["x", "-w", "/nonexistent"], "does not exist"),
        (["x", "--budget-time", "soon"], "not a duration"),
        (["x", "--env", "NOVALUE"], "NAME=VALUE"),
        (["-f", "/nonexistent.json"], "Cannot read"),
        (["x", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_commands(run: Run, server: Server, arguments: list[str], said: str) -> None:
    result = run("submit", *arguments)
    assert result.code == 2
    assert said in result.err
    assert not server.bodies("POST", "/v1/tasks")


def test_what_the_server_refuses_is_said_in_sentences(run: Run, server: Server) -> None:
    server.refusals["POST", "/v1/tasks"] = [
        (
            422,
            {
                "detail": "The request was refused.",
                "code": "invalid_input",
                "retryable": False,
                "request_id": "req_7",
                "errors": [{"field": "budget.max_tokens", "message": "must be positive\x1b[31m"}],
            },
        )
    ]
    result = run("submit", "Fix it")
    assert result.code == 2
    assert result.err.splitlines()[-3:] == [
        "The request was refused.",
        "  budget.max_tokens: must be positive\\x1b[31m",
        "(request req_7)",
    ]


def test_a_wrong_key_and_a_missing_task(run: Run, server: Server) -> None:
    result = run("show", TASK, "--api-key", "jm_wrong")
    assert result.code == 2
    assert "No such key." in result.err
    assert "--api-key" in result.err
    result = run("show", "task_ffffffffffffffffffffffffffffffff")
    assert result.code == 2
    assert "There is nothing at" in result.err


def test_a_server_that_is_away(run: Run) -> None:
    result = run("cancel", TASK, "--url", "http://127.0.0.1:9")
    assert result.code == 3
    assert "Cannot reach http://127.0.0.1:9" in result.err
    assert KEY not in result.err


@pytest.mark.parametrize("bad", ["../../v1/me", "task_1?x=1", "", "task 1", "täsk"])
def test_ids_lead_nowhere_else(run: Run, server: Server, bad: str) -> None:
    result = run("show", bad)
    assert result.code == 2
    assert "is not an id" in result.err
    assert not server.requests


def test_list(run: Run, server: Server) -> None:
    server.task["title"] = "Evil \x1b]0;x\x07 title"
    result = run("list")
    assert result.code == 0
    assert result.out.splitlines()[0].split() == ["id", "state", "age", "title"]
    assert "✓ succeeded" in result.out
    assert "\\x1b]0;x\\a" in result.out
    assert json.loads(run("list", "--json").out)[0]["id"] == TASK


def test_show(run: Run, server: Server) -> None:
    result = run("show", TASK)
    assert result.code == 0
    for text in ("Repair the sum", "✓ succeeded", "replay engine", "Fix the sum", "pytest -q", "$0.0420", "✓ passed"):
        assert text in result.out
    found = json.loads(run("show", TASK, "--json").out)
    assert found["receipts"][0]["passed"] is True
    assert found["usage"]["tokens"] == 1234


def test_cancel(run: Run) -> None:
    assert run("cancel", TASK).out == f"{TASK} is cancelled.\n"


def test_diff_in_a_pipe_is_the_patch_itself(run: Run) -> None:
    assert run("diff", TASK).out.endswith("+new\x1b[31m\n")


def test_logs_say_everything(run: Run) -> None:
    result = run("logs", TASK)
    assert result.code == 0
    assert len([line for line in result.out.splitlines() if "|" not in line]) == 13
    assert "checkpoint.created" in result.out
    assert "| \\x1b[32m3 passed\\x1b[0m\\a \ufffd" in result.out
    assert "\x1b" not in result.out
    only = run("logs", TASK, "--types", "acceptance.passed", "--json").out
    assert [json.loads(line)["seq"] for line in only.splitlines()] == [11]


def test_artifacts_are_listed_and_fetched(run: Run, server: Server, tmp_path: Path) -> None:
    names = ["report.md", "report.md", "../../etc/passwd", "/abs/olute.txt"]
    server.artifacts = [
        {"id": f"art_{n}", "kind": "file", "name": name, "size": 3, "media_type": "text/plain"}
        for n, name in enumerate(names)
    ]
    server.contents = {f"art_{n}": f"<{n}>".encode() for n in range(4)}
    assert "report.md" in run("artifacts", TASK).out
    out = tmp_path / "out"
    assert run("artifacts", TASK, "--download", str(out)).code == 0
    files = {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}
    assert files == {"report.md": "<0>", "report-2.md": "<1>", "etc/passwd": "<2>", "abs/olute.txt": "<3>"}
    assert {path.name for path in tmp_path.iterdir()} == {"data", "out"}


def test_links_in_the_download_directory_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sub").symlink_to(tmp_path)
    (tmp_path / "out" / "file").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CommandError, match="leads out"):
        place_for(tmp_path / "out", "sub/x")
    assert place_for(tmp_path / "out", "file").name == "file-2"
    assert place_for(tmp_path / "out", "..").name == "artifact"


def test_version_and_help(bare: Run) -> None:
    assert bare("--version").out.startswith("journeyman ")
    result = bare("--help")
    for name in ("submit", "watch", "list", "show", "cancel", "artifacts", "diff", "logs", "demo", "worker"):
        assert f"  {name}" in result.out


@pytest.mark.parametrize("arguments", [["submit", "x", "--budget-cost", "2"], ["fork", TASK, "ckpt_1"]])
def test_what_the_server_warns_of_is_said_beside_the_id(run: Run, server: Server, arguments: list[str]) -> None:
    server.task["warnings"] = [{"code": "dollar_limit_without_price", "message": "Nobody knows the price.\x1b[2J"}]
    result = run(*arguments)
    assert (result.code, result.out) == (0, f"{TASK}\n")
    assert "! Nobody knows the price.\\x1b[2J\n" in result.err
    assert "! Nobody knows the price." in run("show", TASK).out


def test_a_task_that_is_paused_is_resumed_with_more(run: Run, server: Server) -> None:
    server.task |= {
        "state": "running",
        "budget": {"max_wall_s": 60},
        "paused_reason": "budget",
        "paused_detail": {"level": "task", "limit": "max_wall_s", "spent": 60, "of": 60},
    }
    result = run("resume", TASK, "--budget-time", "1h30m")
    assert (result.code, result.out, result.err) == (0, f"{TASK} goes on (running).\n", "")
    assert server.bodies("PATCH", f"/v1/tasks/{TASK}/budget") == [{"max_wall_s": 5400}]
    same = run("resume", TASK, "--json")
    assert json.loads(same.out)["id"] == TASK
    again = run("resume", TASK)
    assert "pauses again at its next step" in again.err
    assert f"{command()} resume {TASK} --budget-time 2m\n" in again.err
    assert run("resume", TASK, "--budget-time", "soon").code == 2


def test_tell_sends_a_message_under_a_key(run: Run, server: Server) -> None:
    result = run("tell", TASK, "Use tabs.", "--interrupt")
    assert (result.code, result.out) == (0, "The agents read message 1 now: the call in progress is cancelled.\n")
    assert server.bodies("POST", f"/v1/tasks/{TASK}/messages") == [{"text": "Use tabs.", "mode": "interrupt"}]
    assert [headers["Idempotency-Key"] for headers in server.headers if "Idempotency-Key" in headers]
