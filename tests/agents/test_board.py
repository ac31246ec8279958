"""The blackboard as agents read it."""

from journeyman.agents.board import NOTE_LIMIT, OPENING_LIMIT, Board, BoardNote, PlannedSubtask, opening_text, read_text
from journeyman.agents.context import TaskBrief, coder_opening, planner_opening, reviewer_opening
from journeyman.agents.plans import Subtask
from journeyman.agents.tools import ParsedCall, ToolError, parse_call, tool_schemas

PLAN = (PlannedSubtask("s1", "Read", "completed"), PlannedSubtask("s2", "Write", "running"))
SUBTASK = Subtask(id="s2", title="Write", instructions="Write it.", depends_on=[], acceptance=[])


def note(number: int, kind: str = "note", text: str = "", **fields: object) -> BoardNote:
    return BoardNote(number, kind, text or f"Text {number}.", "coder", **fields)  # type: ignore[arg-type]


def numbers(text: str) -> list[int]:
    return [int(line[3 : line.index("]")]) for line in text.splitlines() if line.startswith("- [")]


def test_what_binds_others_comes_first_and_the_newest_of_each() -> None:
    board = Board(
        notes=(
            note(1, "decision"),
            note(2, "note"),
            note(3, "promise"),
            note(4, "finding"),
            note(5, "decision"),
            note(6, "promise", closed_by=7),
            note(7, "note", closes=6),
            note(8, "promise"),
        )
    )
    text = opening_text(board)
    assert numbers(text) == [8, 3, 5, 1, 4, 7, 2]
    assert "- [8] promise by coder, open: Text 8." in text
    assert text.endswith("- 1 more note: `read_notes` shows all.")


def test_an_empty_board_leaves_no_trace() -> None:
    assert opening_text(Board()) == ""
    plain = planner_opening(TaskBrief("Do it."))
    assert "blackboard" not in plain["content"]


def test_the_opening_is_bounded_and_says_what_it_leaves_out() -> None:
    notes = tuple(note(number, "decision", f"{number} " + "x" * 900) for number in range(1, 40))
    text = opening_text(Board(1, PLAN, notes))
    assert len(text.encode()) <= OPENING_LIMIT + 200
    shown = numbers(text)
    assert shown == list(range(39, 39 - len(shown), -1))
    assert f"- {39 - len(shown)} more notes: `read_notes` shows all." in text


def test_one_note_does_not_crowd_out_the_others() -> None:
    text = opening_text(Board(notes=(note(1), note(2, text="y" * 100_000))))
    assert numbers(text) == [2, 1]
    assert len(text.encode()) < NOTE_LIMIT + 400


def test_a_very_large_plan_leaves_room_for_notes() -> None:
    plan = tuple(PlannedSubtask(f"s{number}", "t" * 80, "pending") for number in range(500))
    assert numbers(opening_text(Board(1, plan, (note(1, "decision"),)))) == [1]


def test_all_roles_are_told_the_same() -> None:
    brief = TaskBrief(
        "Do it.", board=Board(2, PLAN, (note(1, "decision", "Dates are ISO 8601.\nSubtask: s9", subtask_id="s1"),))
    )
    openings = [
        planner_opening(brief, revision=3, reason="It failed."),
        coder_opening(brief, SUBTASK),
        reviewer_opening(brief, SUBTASK, round_number=1, summary="Done.", diff=""),
    ]
    for opening in openings:
        text = opening["content"]
        assert "# The task's blackboard when this conversation began\nPlan, revision 2:\n- s1 (Read): completed" in text
        assert "- [1] decision by coder (s1): Dates are ISO 8601.\n  Subtask: s9" in text
    assert coder_opening(brief, SUBTASK) == openings[1]
    headers = [line for line in openings[1]["content"].splitlines() if line.startswith("Subtask: ")]
    assert headers == ["Subtask: s2"], "no line of a note passes for one of the opening"


def test_reading_goes_on_where_it_was_cut() -> None:
    board = Board(notes=tuple(note(number, text="z" * 1000) for number in range(5, 45)))
    text = read_text(board)
    shown = numbers(text)
    assert shown == list(range(5, 5 + len(shown)))
    assert text.endswith(f"[{40 - len(shown)} more notes: read_notes with after={shown[-1]}]")
    assert read_text(Board()) == "No notes."
    assert read_text(Board(1, PLAN)).startswith("Plan, revision 1:\n- s1 (Read): completed\n- s2 (Write): running")


def test_every_role_has_both_tools() -> None:
    for role in ("planner", "coder", "reviewer"):
        names = [schema["function"]["name"] for schema in tool_schemas(role)]
        assert names[-3:-1] == ["post_note", "read_notes"]
        call = parse_call(role, "post_note", '{"kind": "promise", "text": "I will document it.", "closes": 2.0}')
        assert isinstance(call, ParsedCall)
        assert call.values == {"kind": "promise", "text": "I will document it.", "closes": 2}
        assert isinstance(parse_call(role, "read_notes", "{}"), ParsedCall)


def test_wrong_notes_are_said_to_be_wrong() -> None:
    for raw in ('{"kind": "rumour", "text": "x"}', '{"kind": "note"}', '{"kind": "note", "text": "x", "closes": 0}'):
        assert isinstance(parse_call("coder", "post_note", raw), ToolError)
    assert isinstance(parse_call("coder", "read_notes", '{"after": -1}'), ToolError)
