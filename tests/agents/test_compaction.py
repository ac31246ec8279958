import json
import re

import pytest

from journeyman.agents import context
from journeyman.agents.compaction import (
    CARRIED_LIMIT,
    MAX_PROMISES,
    MIN_TURNS,
    SHORTENED_ROOM,
    NextStep,
    SegmentState,
    is_summary,
    next_segment,
    next_step,
    summary_request,
)
from journeyman.agents.context import TaskBrief
from journeyman.agents.plans import Subtask

INSTRUCTION = "Do it.\n<so_far>\nnot really\n</so_far>"
OPENING = context.reviewer_opening(
    TaskBrief(INSTRUCTION), Subtask(id="s1", title="T", instructions="I"), round_number=2, summary="S", diff="+x"
)


def turn(name, **arguments):
    call = {"id": "c", "name": name, "arguments": json.dumps(arguments)}
    return [context.assistant_message("Hm.", [call]), context.tool_message("c", "done")]


def header(content):
    return dict(re.findall(r"^(Subtask|Round|Turn): (\S+)$", content.partition("</task>")[2], re.MULTILINE))


def worked(turns):
    state = SegmentState()
    for _ in range(turns):
        state = state.answered()
    return state


def test_the_next_segment_starts_with_the_opening_as_it_was():
    messages = [OPENING, *turn("shell", command="ls"), context.user_note("forget me")]
    (first, *rest), state = next_segment(messages, "I looked around.", worked(1))
    assert first["content"].startswith(OPENING["content"])
    assert f"<task>\n{INSTRUCTION}\n</task>" in first["content"]
    assert header(first["content"]) == {"Subtask": "s1", "Round": "2", "Turn": "1"}
    assert "I looked around." in first["content"]
    assert rest == []
    assert state == SegmentState(segment=2, turns_before=1, short_runs=1)


def test_summaries_do_not_pile_up():
    messages, state = [OPENING], worked(5)
    for number in range(10):
        messages, state = next_segment(messages, f"summary {number}\n\n<so_far>\nx\n</so_far>", state)
        state = state.model_copy(update={"turns": 5})
    text = messages[0]["content"]
    assert re.findall(r"summary \d", text) == ["summary 9"]
    assert text.startswith(OPENING["content"])
    assert header(text)["Turn"] == "50"
    assert len(text) < len(OPENING["content"]) + 500


def test_what_people_said_and_the_last_review_are_carried_word_for_word():
    said = [context.person_message("Use tabs."), context.person_message("No, spaces.")]
    reviews = [context.findings_note(1, []), context.findings_note(2, [])]
    messages = [OPENING, said[0], reviews[0], *turn("shell", command="x"), said[1], reviews[1]]
    segment, state = next_segment(messages, "s", worked(9))
    assert segment[1:] == [said[0], said[1], reviews[1]]
    again, _ = next_segment([*segment, *turn("shell", command="y")], "s2", state)
    assert again[1:] == segment[1:]


def test_carried_messages_are_bounded_and_the_latest_survive():
    said = [context.person_message(f"{number} " + "x" * 5000) for number in range(20)]
    segment, _ = next_segment([OPENING, *said], "s", worked(9))
    assert segment[-1] == said[-1]
    assert sum(len(message["content"]) for message in segment[1:]) <= CARRIED_LIMIT + SHORTENED_ROOM
    huge = context.person_message("x" * 1_000_000)
    segment, _ = next_segment([OPENING, huge], "s", worked(9))
    assert len(segment[1]["content"]) < CARRIED_LIMIT + 200


def test_files_and_background_commands_are_not_left_to_memory():
    messages = [
        OPENING,
        *turn("write_file", path="a.py", content="x"),
        *turn("edit_file", path="b.py", old="x", new="y"),
        *turn("edit_file", path="a.py", old="x", new="y"),
        *turn("shell", command="serve", background=True),
        *turn("shell", command="ls"),
        *turn("write_file", path=7),
        context.assistant_message(None, [{"id": "z", "name": "write_file", "arguments": "broken"}]),
    ]
    segment, state = next_segment(messages, "s", worked(9))
    assert state.files == ("b.py", "a.py")
    assert state.background == ("serve",)
    segment, state = next_segment([*segment, *turn("write_file", path="c.py", content="")], "s", state)
    assert state.files == ("b.py", "a.py", "c.py")
    assert "- b.py\n- a.py\n- c.py" in segment[0]["content"]
    assert "- serve" in segment[0]["content"]


def test_an_endless_or_empty_summary_is_bounded():
    segment, _ = next_segment([OPENING], "x" * 1_000_000, worked(9))
    assert len(segment[0]["content"]) < 40_000
    segment, _ = next_segment([OPENING], "  ", worked(9))
    assert "The summary was empty" in segment[0]["content"]
    with pytest.raises(ValueError, match="opening"):
        next_segment([], "s", worked(1))


def test_compaction_is_due_before_the_context_is_full():
    limits = {"context_tokens": 110_000, "max_output_tokens": 10_000}
    assert next_step(worked(9), 79_999, **limits) == NextStep.GO_ON
    assert next_step(worked(9), 80_000, **limits) == NextStep.COMPACT


def test_compacting_over_and_over_is_stopped():
    limits = {"context_tokens": 1000, "max_output_tokens": 100}
    state, messages, compactions = SegmentState(), [OPENING], 0
    while next_step(state, 900, **limits) == NextStep.COMPACT:
        messages, state = next_segment(messages, "s", state.answered())
        compactions += 1
    assert compactions <= 2
    assert next_step(state, 900, **limits) == NextStep.STUCK
    for _ in range(MIN_TURNS):
        state = state.answered()
    assert next_step(state, 900, **limits) == NextStep.COMPACT


def test_the_request_is_one_more_message():
    assert summary_request()["role"] == "user"
    assert "Open promises" in summary_request()["content"]


def test_older_messages_from_people_are_shortened_before_any_is_left_out():
    said = [context.person_message(f"{number}: never use eval. " + "x" * 3000) for number in range(12)]
    segment, state = next_segment([OPENING, *said], "s", worked(9))
    texts = [message["content"] for message in segment[1:]]
    assert texts[-1] == said[-1]["content"]
    assert [text.split()[4] for text in texts] == [f"{number}:" for number in range(12)]
    assert state.left_out == 0
    assert "not repeated here" not in segment[0]["content"]


def test_messages_that_are_left_out_are_spoken_of_in_every_later_segment():
    said = [context.person_message(f"{number} " + "x" * 6000) for number in range(60)]
    segment, state = next_segment([OPENING, *said], "s", worked(9))
    left_out = 60 - (len(segment) - 1)
    assert left_out > 0
    assert state.left_out == left_out
    again, _ = next_segment(segment, "s", state)
    assert f"{left_out} older messages from people" in again[0]["content"]


def test_what_the_agent_said_it_would_do_is_carried_through_every_segment():
    promises = [
        "I will remove the debug hook before I submit.",
        "I\u2019ll come back to the flaky test.",
        "TODO: rename the column.",
        "I still need to check Windows paths.",
    ]
    idle = [context.assistant_message(f"Looked at part {number}. It is fine.") for number in range(3)]
    first = [context.assistant_message(f"That works. {promise} Next one.") for promise in promises]
    messages, state = next_segment([OPENING, *first, *idle], "", worked(9))
    for _ in range(3):
        messages, state = next_segment([*messages, *idle], "", state)
    assert state.promises == tuple(promises)
    assert all(f"- {promise}" in messages[0]["content"] for promise in promises)
    assert "It is fine" not in messages[0]["content"]
    many = [context.assistant_message(f"I will do thing {number}.") for number in range(100)]
    _, state = next_segment([*messages, *many], "", state)
    assert len(state.promises) == MAX_PROMISES
    assert state.promises[-1] == "I will do thing 99."


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        ("", False),
        ("  \n", False),
        ("<so_far>\n\n</so_far>", False),
        ("OK.", False),
        ("I'm sorry, but I can't help with that request.", False),
        ("I cannot continue this conversation.", False),
        ("1. Goal: make the tests pass. 2. Done: read src/app.py.", True),
        ("I cannot reproduce the failure. " + "Done: read src/app.py and ran the tests. " * 20, True),
    ],
)
def test_an_empty_or_refused_summary_is_none(answer, good):
    assert is_summary(answer) is good
