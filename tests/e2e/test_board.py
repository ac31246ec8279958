"""What the roles of a task tell one another over its blackboard."""

from support.platform import Platform
from support.scripts import approve, call, coder, plan, planner, reviewer, shell, subtask, work

REVIEWER_READS = (
    r"(?s)- s1 \(Subtask s1\): running\n.*"
    r"- \[4\] promise by coder \(s1\), open: Old amounts must be migrated\.\n"
    r"- \[1\] decision by planner: Amounts are integer cents\.\n"
    r"- \[3\] finding by coder \(s1\), closes 2: The manual is in README\.md\."
)


async def test_a_decision_and_a_promise_reach_the_reviewer(platform: Platform) -> None:
    threads = [
        planner(call("post_note", kind="decision", text="Amounts are integer cents."), plan()),
        coder(
            # Each answer is given only if the request holds the text: the opening carries the board.
            {**call("post_note", kind="promise", text="The manual follows."), "expect": "Amounts are integer cents."},
            {
                **call("post_note", kind="finding", text="The manual is in README.md.", closes=2),
                "expect": "Note 2 is on",
            },
            {
                **call("post_note", kind="promise", text="Old amounts must be migrated."),
                "expect": "It closes promise 2.",
            },
            work(),
        ),
        reviewer({**approve(), "expect_regex": REVIEWER_READS}),
    ]
    outcome = await platform.run(threads)
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert [event["data"]["number"] for event in outcome.of("note.written")] == [1, 2, 3, 4]
    board = await platform.get(f"/v1/tasks/{outcome.task['id']}/board")
    assert [(note["number"], note["closed_by"]) for note in board["data"]] == [(4, None), (3, None), (2, 3), (1, None)]
    assert [subtask["state"] for subtask in board["plan"]["subtasks"]] == ["completed"]


async def test_parallel_coders_read_each_others_notes(platform: Platform) -> None:
    def side(own: str, other: str) -> list[dict[str, object]]:
        turns: list[dict[str, object]] = [call("post_note", kind="decision", text=f"The port of {own} is fixed.")]
        # Until the other one, which is under way at the same time, has surely begun too.
        for second in range(1, 9):
            turns += [shell(f"sleep 1; echo {second} > {own}"), call("read_notes", kind="decision")]
        turns.append({**work(), "expect": f"by coder ({other}): The port of {other} is fixed."})
        return turns

    threads = [
        planner(plan(subtask("left"), subtask("right"))),
        coder(*side("left", "right"), subtask_id="left"),
        coder(*side("right", "left"), subtask_id="right"),
        reviewer(approve(), subtask_id="left"),
        reviewer(approve(), subtask_id="right"),
    ]
    outcome = await platform.run(threads)
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    last = {
        event["subtask_id"]: event["data"]["text"]
        for event in outcome.of("agent.tool_result")
        if event["data"]["tool"] == "read_notes"
    }
    assert "The port of right is fixed." in last["left"]
    assert "The port of left is fixed." in last["right"]


async def test_a_wrong_note_comes_back_as_an_error(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder(
            call("post_note", kind="note", text="Closing what nobody promised.", closes=7),
            {**work(), "expect": "Error: There is no note 7 on the board"},
        ),
        reviewer(approve()),
    ]
    outcome = await platform.run(threads)
    assert outcome.task["state"] == "succeeded"
    assert outcome.of("note.written") == []
    assert outcome.results("post_note")[0]["ok"] is False
