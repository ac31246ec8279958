"""``checkpoints``, ``rewind`` and ``fork``, and how a watcher is told of them."""

import json
from pathlib import Path
from typing import Any

from journeyman.apps.cli.steps.fold import fold_event
from journeyman.apps.cli.suggestions import command
from journeyman.apps.cli.view import TaskView
from support.fake_rest import TASK, Server, event

Run = Any
CHECKPOINT = "ckpt_0123456789abcdef0123456789abcdef"
FORK = "task_fedcba9876543210fedcba9876543210"
BASE = f"/v1/tasks/{TASK}"

SPENT = {"tokens": 1200, "cost_usd": "1.50", "steps": 7, "wall_s": 90}
PREVIEW = {
    "can_rewind": True,
    "state_then": "running",
    "plan_revision_then": 1,
    "events_set_aside": 40,
    "subtasks": [{"id": "s1", "title": "Sum", "now": "completed", "then": "running"}],
    "threads": [
        {"role": "coder", "subtask_id": "s1", "effect": "goes_on", "messages_set_aside": 8},
        {"role": "coder", "subtask_id": "s2", "effect": "set_aside", "messages_set_aside": 1},
    ],
    "files": [
        {"subtask_id": None, "added": 0, "modified": 1, "deleted": 30, "data": [{"path": "a.py", "kind": "modified"}]}
    ],
    "messages_set_aside": [{"number": 2, "text": "Faster!\x1b[2J"}],
    "approvals_withdrawn": 1,
    "spent": SPENT,
    "inherited_by_fork": SPENT,
}


def test_checkpoints_say_whose_step_made_them(run: Run, server: Server) -> None:
    made = {
        "id": CHECKPOINT, "event_seq": 9, "created_at": "2026-01-02T03:04:09+00:00", "thread_id": "thr_c",
        "submitted": True, "plan_revision": 1, "epoch": 0, "budget": {"tokens": 100},
    }  # fmt: skip
    page: tuple[int, dict[str, Any] | str] = (200, {"data": [made], "next_cursor": None})
    server.refusals["GET", f"{BASE}/checkpoints"] = [page, page]
    server.task["state"] = "running"
    result = run("checkpoints", TASK)
    assert result.code == 0
    assert CHECKPOINT in result.out
    assert "coder of s1, handed over" in result.out
    assert f"go back:             {command()} rewind {TASK} CHECKPOINT\n" in result.err
    assert f"{command()} fork {TASK} CHECKPOINT" in result.err
    server.task["state"] = "failed"
    ended = run("checkpoints", TASK).err
    assert "has ended (failed)" in ended
    assert "go back:" not in ended
    assert f"{command()} fork {TASK} CHECKPOINT" in ended


def test_a_preview_tells_and_changes_nothing(run: Run, server: Server) -> None:
    path = f"{BASE}/checkpoints/{CHECKPOINT}/preview"
    server.refusals["GET", path] = [(200, PREVIEW), (200, PREVIEW)]
    result = run("rewind", TASK, CHECKPOINT, "--preview")
    assert result.code == 0
    for said in (
        "Goes on running, plan 1; sets aside 40 events",
        "subtask s1 (Sum): completed -> running",
        "coder of s1: goes on, 8 messages set aside",
        "files of the approved work: 0 added, 1 modified, 30 deleted",
        "and 30 more",
        "message 2 is set aside",
        "7 steps",
        "coder of s2: is set aside, 1 message set aside",
        "withdraws 1 approval\n",
    ):
        assert said in result.out, said
    assert "\x1b" not in result.out
    assert json.loads(run("rewind", TASK, CHECKPOINT, "--preview", "--json").out) == PREVIEW
    assert server.bodies("POST", f"{BASE}/rewind") == []


def test_a_rewind_is_sent_under_a_key_of_its_own(run: Run, server: Server) -> None:
    server.refusals["POST", f"{BASE}/rewind"] = [
        (503, {"detail": "Starting.", "retryable": True}),
        (202, {"id": "rwd_1"}),
    ]
    result = run("rewind", TASK, CHECKPOINT, "--message", "Differently.")
    assert result.code == 0
    assert "rwd_1" in result.out
    assert server.bodies("POST", f"{BASE}/rewind") == [{"checkpoint_id": CHECKPOINT, "message": "Differently."}] * 2
    assert len({headers["Idempotency-Key"] for headers in server.headers if "Idempotency-Key" in headers}) == 1


def test_a_task_that_has_ended_is_to_be_forked(run: Run, server: Server) -> None:
    problem = {"detail": "The task has ended (failed); it cannot go back. Fork it.", "code": "task_ended"}
    server.refusals["POST", f"{BASE}/rewind"] = [(409, problem)]
    result = run("rewind", TASK, CHECKPOINT)
    assert result.code == 2
    assert "Fork it" in result.err


def test_a_fork_prints_the_new_id(run: Run, server: Server, tmp_path: Path) -> None:
    made = {**server.task, "id": FORK, "state": "queued"}
    server.refusals["POST", f"{BASE}/fork"] = [(201, made), (201, made)]
    text = tmp_path / "instruction.txt"
    text.write_text("Make it fast. ü")
    result = run("fork", TASK, CHECKPOINT, "--instruction", f"@{text}", "--budget-tokens", "500", "--budget-time", "1h")
    assert (result.code, result.out) == (0, f"{FORK}\n")
    assert run("fork", TASK, CHECKPOINT).code == 0
    assert server.bodies("POST", f"{BASE}/fork") == [
        {
            "checkpoint_id": CHECKPOINT,
            "instruction": "Make it fast. ü",
            "budget": {"max_tokens": 500, "max_wall_s": 3600},
        },
        {"checkpoint_id": CHECKPOINT},
    ]
    missing = run("fork", TASK, CHECKPOINT, "--instruction", "@/nonexistent")
    assert missing.code == 2
    assert "Cannot read" in missing.err


def test_a_watcher_sees_the_plan_as_it_is_after_a_rewind() -> None:
    view = TaskView("t")
    fold_event(view, event(1, "plan.proposed", {"revision": 1, "subtasks": [{"id": "a", "title": "A"}]}))
    fold_event(view, event(2, "plan.revised", {"revision": 2, "subtasks": [{"id": "b", "title": "B"}]}))
    fold_event(
        view, event(3, "agent.tool_call", {"role": "coder", "call_id": "x:0", "tool": "shell", "arguments": "{}"})
    )
    plan = {"revision": 1, "subtasks": [{"id": "a", "title": "A", "state": "completed", "rounds": 2}], "acceptance": []}
    line = fold_event(view, event(4, "task.rewound", {"to_seq": 1, "plan_revision": 1, "plan": plan}))
    assert line is not None
    assert "taken back to event 1" in line.text
    assert [(one.id, one.state, one.rounds) for one in view.subtasks.values()] == [("a", "completed", 2)]
    assert (view.plan_revision, view.running) == (1, {})
    fold_event(view, event(5, "task.rewound", {"to_seq": 0, "plan_revision": 0, "plan": None}))
    assert (view.subtasks, view.plan_revision) == ({}, 0)
