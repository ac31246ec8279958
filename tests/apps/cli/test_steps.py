import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from journeyman.apps.cli import render
from journeyman.apps.cli.calls import describe_call
from journeyman.apps.cli.steps.fold import fold_event
from journeyman.apps.cli.suggestions import command
from journeyman.apps.cli.view import Line, TaskView
from journeyman.platform.events.types import EventType
from support.fake_rest import course, event


def fold(events: list[dict[str, object]]) -> tuple[TaskView, list[Line]]:
    view = TaskView("task_1")
    return view, [line for entry in events if (line := fold_event(view, entry)) is not None]


def test_a_task_from_its_events() -> None:
    view, lines = fold(course())
    assert (view.state, view.verified, view.tokens, view.plan_revision) == ("succeeded", True, 100, 1)
    assert view.subtasks["s1"].state == "completed"
    assert view.elapsed(0) == 12
    assert not view.running
    texts = [line.text for line in lines]
    assert "plan: 1 subtask" in texts
    assert "$ pytest -q" in texts
    assert "→ exit 0 in 0.2 s" in texts
    assert "acceptance passed: pytest -q in 0.5 s" in texts
    assert {line.role for line in lines} == {"platform", "coder"}


def test_what_runs_when_the_task_ends_is_stopped() -> None:
    begun = [each for each in course() if each["type"] in {"plan.proposed", "subtask.started"}]
    view, _ = fold([*begun, event(50, "task.cancelled", {"state": "cancelled"})])
    assert view.state == "cancelled"
    assert view.subtasks["s1"].state == "stopped"


@pytest.mark.parametrize("kind", list(EventType))
def test_every_type_can_be_told_whatever_it_holds(kind: EventType) -> None:
    for data in (
        {},
        {"reason": None, "findings": [None, {}], "subtasks": [3], "usage": 1, "arguments": "{", "role": 5},
    ):
        view = TaskView("task_1")
        line = fold_event(view, event(1, kind.value, data))
        assert line is None or line.text != kind.value
        assert view.last_seq == 1


def test_notes_are_told_with_what_they_close() -> None:
    _, (line,) = fold(
        [event(1, "note.written", {"number": 3, "kind": "note", "text": "Done.\nAll of it.", "closes": 1})]
    )
    assert (line.text, line.detail) == ("note 3, closes 1: Done.", ("All of it.",))


def test_types_of_a_newer_server_are_named() -> None:
    _, (line,) = fold([event(1, "something.new")])
    assert line.text == "something.new"


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("shell", '{"command": "python3 - <<E\\nprint(1)\\nE"}', "$ python3 - <<E"),
        ("shell", "[" * 3000, f"shell with arguments that are not JSON: {'[' * 79}…"),
        ("shell", "{broken", "shell with arguments that are not JSON: {broken"),
        ("shell", "[1]", "shell [1]"),
        ("read_file", {"path": "a.py"}, "reads a.py"),
        ("write_file", {"path": "a.py", "content": "1\n2\n"}, "writes a.py (2 lines)"),
        ("edit_file", {"path": "a\x1b.py", "old": "x", "new": "y"}, "edits a\\x1b.py"),
        ("search", {"pattern": "TODO", "path": "src"}, "searches for TODO in src"),
        ("list_files", {}, "lists ."),
        ("post_note", {"kind": "finding", "text": "x"}, "posts a finding"),
        ("read_notes", {}, "reads the board"),
        ("submit_plan", {"subtasks": [1, 2]}, "submits a plan of 2 subtasks"),
        ("submit_review", {"verdict": "approve"}, "submits a review: approve"),
        ("mcp__git__log", {"n": 1}, 'mcp__git__log {"n": 1}'),
    ],
)
def test_calls_in_a_few_words(tool: str, arguments: object, text: str) -> None:
    assert describe_call(tool, arguments)[0] == text


def test_results_of_a_batch_say_whose_they_are() -> None:
    calls = [
        event(n, "agent.tool_call", {"call_id": f"step:{n}", "tool": "read_file", "arguments": {"path": f"{n}.py"}})
        for n in (1, 2)
    ]
    results = [
        event(n + 2, "agent.tool_result", {"call_id": f"step:{n}", "tool": "read_file", "ok": True, "text": "a\nb"})
        for n in (1, 2)
    ]
    _, lines = fold([*calls, *results])
    assert [line.text for line in lines[2:]] == ["→ 2 lines: reads 1.py", "→ 2 lines: reads 2.py"]
    assert render.plain_line(lines[2]).count("\n") == 0
    assert lines[2].detail == ("a", "b")


def test_what_was_added_for_the_agent_is_not_said_twice() -> None:
    data = {"call_id": "s:0", "tool": "shell", "ok": True, "exit_code": 0, "text": "out\n\n[exit code 0]"}
    _, (line,) = fold([event(1, "agent.tool_result", data)])
    assert (line.text, line.detail) == ("→ exit 0", ("out",))
    assert fold([event(1, "agent.tool_result", {"call_id": "s:0", "tool": "submit_work", "ok": True})])[1] == []


def test_a_new_plan_keeps_what_is_done() -> None:
    plan = {"subtasks": [{"id": "s1", "title": "One"}, {"id": "s2", "title": "Two", "depends_on": ["s1"]}]}
    view, _ = fold([*course()[:10], event(20, "plan.revised", {"revision": 2, **plan})])
    assert [subtask.state for subtask in view.subtasks.values()] == ["completed", "pending"]
    assert view.plan_revision == 2


def test_roles_and_states_are_told_by_more_than_colour() -> None:
    _, lines = fold(course())
    text = "\n".join(render.plain_line(line) for line in lines)
    assert "● coder" in text
    assert "■ platform" in text
    assert render.state_words("succeeded", verified=False) == "✓ succeeded (not verified)"
    assert len({icon for icon, _ in render.ROLES.values()}) == len(render.ROLES)


def test_ids_are_whole_however_narrow_the_terminal() -> None:
    ids = [f"{kind}_{number:032x}" for number, kind in enumerate(("apr", "task", "apr", "task"))]
    narrow = (
        ("id", "state", "title"),
        [(ids[0], "running", "A title of many words " * 3), (ids[1], "failed", "")],
    )
    wide = (("id", "task", "why"), [(ids[0], ids[1], "A rule of the policy asks for it."), (ids[2], ids[3], "")])

    def shown(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
        written = io.StringIO()
        out = Console(width=width, file=written)
        out.print(render.listing(columns, rows, out))
        return [line.rstrip() for line in written.getvalue().splitlines()]

    for width in (50, 80, 200):
        for columns, rows in (narrow, wide):
            lines = shown(columns, rows, width)
            assert all(any(cell in line for line in lines) for row in rows for cell in row if cell in ids), (
                width,
                lines,
            )
            assert max(map(len, lines)) <= width
    assert shown(*wide, 80) == [
        ids[0], f"  task  {ids[1]}", "  why   A rule of the policy asks for it.", ids[2], f"  task  {ids[3]}", ""
    ]  # fmt: skip


def test_long_output_keeps_its_end() -> None:
    lines = [str(n) for n in range(10)]
    assert render.cut(lines, 4) == ["0", "… 6 more lines …", "7", "8", "9"]
    assert render.cut(lines, 1) == ["… 9 more lines …", "9"]
    assert render.cut(lines, 2) == ["… 8 more lines …", "8", "9"]
    assert render.cut(lines, 9) == ["0", "1", "2", "… 1 more line …", "4", "5", "6", "7", "8", "9"]
    assert render.cut(lines, 0) == render.cut(["a"], 0) == []
    assert render.cut(["a"], 1) == ["a"]


def test_what_waits_is_told_with_the_commands_that_decide_it() -> None:
    call = {
        "tool": "shell",
        "arguments": {"command": "git push\necho done"},
        "reason": "It sends commits.",
        "role": "coder",
    }
    requested = {"approval_id": "apr_1", "kind": "tool_call", "subject": call}
    planned = {"approval_id": "apr_2", "kind": "plan", "subject": {"revision": 1}}
    edited = {"approval_id": "apr_2", "revision": 2, "author": "key_1", "subtasks": [], "acceptance": []}
    view, lines = fold(
        [
            event(1, "approval.requested", requested),
            event(2, "approval.requested", planned),
            event(3, "plan.edited", edited),
            event(4, "approval.escalated", {"approval_id": "apr_1", "kind": "tool_call"}),
        ]
    )
    assert view.waiting == {"apr_1": "$ git push", "apr_2": "plan, revision 2"}
    assert (lines[0].text, lines[0].status) == ("waits for approval: $ git push", "warn")
    assert "It sends commits." in lines[0].detail
    assert ("approve it", f"{command()} approve apr_1") in lines[0].how
    assert ("reject it", f'{command()} reject apr_1 --note "…"') in lines[0].how
    assert ("look at it", f"{command()} plan task_1") in lines[1].how
    assert (lines[2].text, lines[2].role) == ("plan edited (revision 2): 0 subtasks", "user")
    assert lines[3].text == "still waits for approval: $ git push, escalated"
    shown = "\n".join(str(line) for line in render.waiting_lines(view, None))
    assert "journeyman approve apr_1" in shown
    decided = {"decision": "rejected", "decided_by": "key_1", "note": "Not now.", "edited": False}
    said = fold_event(view, event(5, "approval.decided", {"approval_id": "apr_1", **decided}))
    assert said is not None
    assert (said.text, said.role, said.status, said.detail) == (
        "approval rejected: $ git push",
        "user",
        "bad",
        ("Not now.",),
    )
    expired = {"approval_id": "apr_2", "decision": "expired", "outcome": "rejected", "decided_by": None}
    said = fold_event(view, event(6, "approval.decided", expired))
    assert said is not None
    assert (said.text, said.role) == ("approval expired (counts as rejected): plan, revision 2", "platform")
    assert view.waiting == {}
