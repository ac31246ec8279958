"""What a task waits for, in a line, with the commands that let it go on."""

from typing import Any

import pytest

from journeyman.apps.cli import render
from journeyman.apps.cli.amounts import more, used
from journeyman.apps.cli.steps.fold import fold_event
from journeyman.apps.cli.suggestions import Suggestion, command, laid_out
from journeyman.apps.cli.view import TaskView
from journeyman.apps.cli.waiting import for_pause
from journeyman.platform.tasks.contract import PAUSE_REASONS
from support.fake_rest import TASK, Server, event

Run = Any


def at_limit(limit: str, spent: float, of: float, **more_facts: Any) -> dict[str, Any]:
    return {"level": "task", "limit": limit, "spent": spent, "of": of, "period": "total", **more_facts}


CASES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("user", {}, "until somebody lets it go on", [f"resume {TASK}"]),
    (
        "budget",
        at_limit("max_steps", 3, 3),
        "a larger budget: 3 of 3 steps used",
        [f"resume {TASK} --budget-steps 6"],
    ),
    (
        "budget",
        at_limit("max_tokens", 900, 1000, requested=24_000),
        "a larger budget: 900 of 1,000 tokens used",
        [f"resume {TASK} --budget-tokens 50000"],
    ),
    (
        "budget",
        at_limit("max_cost_usd", 1.25, 1),
        "a larger budget: $1.25 of $1.00 used",
        [f"resume {TASK} --budget-cost 2.5"],
    ),
    (
        "budget",
        at_limit("max_wall_s", 3600, 3600),
        "a larger budget: 1 h 00 min of 1 h 00 min used",
        [f"resume {TASK} --budget-time 120m"],
    ),
    (
        "budget",
        {**at_limit("max_steps", 5, 5), "level": "project", "period": "day"},
        "a larger budget of the project: 5 of 5 steps used; goes on by itself when the day is over (UTC)",
        ["budget --steps 10"],
    ),
    ("budget", {}, "a larger budget", [f"usage {TASK}", f"resume {TASK} --budget-tokens N"]),
    ("circuit_breaker", {"detail": "round and round"}, "somebody to look", [f'tell {TASK} "…"', f"resume {TASK}"]),
    ("model_unavailable", {"detail": "away"}, "the model and goes on by itself", []),
    ("model_account", {"detail": "no credit"}, "the model's account", []),
    ("model_refused", {"detail": "no such model"}, "no such model", [f"resume {TASK}"]),
    ("content_filtered", {"detail": "flagged"}, "content filter", [f'tell {TASK} "…"', f"resume {TASK}"]),
    ("context_exhausted", {}, "a model with a longer context", [f"resume {TASK}", f"checkpoints {TASK}"]),
]


def test_every_reason_has_its_way_on() -> None:
    assert {reason for reason, *_ in CASES} == set(PAUSE_REASONS)


@pytest.mark.parametrize(("reason", "detail", "what", "commands"), CASES)
def test_a_paused_task_says_what_it_waits_for_and_how_it_goes_on(
    run: Run, server: Server, reason: str, detail: dict[str, Any], what: str, commands: list[str]
) -> None:
    server.events = [*server.events[:5], event(6, "task.paused", {"reason": reason, **detail})]
    server.task |= {"state": "running", "verified": None, "paused_reason": reason, "paused_detail": detail or None}
    server.hold_open = True
    shown = run("show", TASK)
    watched = run("watch", TASK, "--stop-on-pause", "--detail", "0")
    logged = run("logs", TASK)
    for result in (shown, watched, logged):
        assert result.code in {0, 5}
        (line,) = [line for line in result.out.splitlines() if "waits " in line]
        assert what in line
        given = [line.partition(command())[2].strip() for line in result.out.splitlines() if f"{command()} " in line]
        assert given == commands


def test_what_is_suggested_are_commands_there_are(run: Run, server: Server) -> None:
    server.task |= {"state": "running", "budget": {}}
    server.refusals["GET", f"/v1/tasks/{TASK}/usage"] = [(404, {"detail": "Not today."})]
    for reason, detail, _, _ in CASES:
        for _, given in for_pause(TASK, reason, detail).how:
            verb, *arguments = given.removeprefix(command()).split()
            said = run(verb, *arguments).err
            # The fake knows few addresses; what is no command, or no option of it, is refused before it is asked.
            assert "No such" not in said, given
    assert server.bodies("PATCH", f"/v1/tasks/{TASK}/budget")[0] == {"max_steps": 6}


def test_list_says_how_to_learn_more(run: Run, server: Server) -> None:
    assert "waits for" not in run("list").err
    server.task |= {"state": "running", "paused_reason": "user"}
    assert f"what a task waits for: {command()} show ID" in run("list").err


def test_of_many_approvals_some_are_shown() -> None:
    view = TaskView(TASK)
    for number in range(6):
        call = {"tool": "shell", "arguments": {"command": f"touch {number}"}}
        fold_event(view, event(number + 1, "approval.requested", {"approval_id": f"apr_{number}", "subject": call}))
    lines = [str(line) for line in render.waiting_lines(view, None)]
    assert sum(f"{command()} approve apr_" in line for line in lines) == 4
    assert "◇ 2 more wait for approval" in lines
    assert lines[-1].endswith(f"{command()} approvals {TASK}")
    fold_event(view, event(9, "task.cancelled", {"state": "cancelled"}))
    assert list(render.waiting_lines(view, None)) == []


def test_commands_are_broken_nowhere() -> None:
    short, long = (
        Suggestion("stop", "journeyman down"),
        Suggestion("the files of it", "journeyman artifacts X --download out"),
    )
    assert laid_out([short, long]) == [
        "  stop:            journeyman down",
        "  the files of it: journeyman artifacts X --download out",
    ]
    assert laid_out([short, long], 45) == [
        "  stop:            journeyman down",
        "  the files of it:",
        "    journeyman artifacts X --download out",
    ]
    assert laid_out([long], 38) == ["  the files of it:", "journeyman artifacts X --download out"]
    assert laid_out([], 10) == []


@pytest.mark.parametrize(
    ("limit", "spent", "larger"),
    [
        ("max_tokens", 123_456, "250000"),
        ("max_tokens", 0, "1"),
        ("max_steps", 1, "2"),
        ("max_cost_usd", 0.001, "0.01"),
        ("max_cost_usd", 0.3, "0.6"),
        ("max_cost_usd", 1234.5, "2500"),
        ("max_wall_s", 30, "60s"),
        ("max_wall_s", 100, "4m"),
    ],
)
def test_larger_limits(limit: str, spent: float, larger: str) -> None:
    assert more(limit, spent) == larger


def test_what_is_used_of_a_limit() -> None:
    assert used("max_steps", 1, 1) == "1 of 1 step"
    assert used("max_tokens", 12_000, 20_000) == "12.0 k of 20.0 k tokens"
