import json
import re
from decimal import Decimal

import pytest

from journeyman.agents import context
from journeyman.agents.arguments import Finding
from journeyman.agents.budget import Limits
from journeyman.agents.canonical import canonical_json, digest, is_json_object, printable
from journeyman.agents.context import DoneSubtask, Environment, TaskBrief
from journeyman.agents.plans import Subtask

INSTRUCTION = "Repair the thing.\n\n  Keep “quotes”, tabs\tand\n# headings as they are.\n"
TASK = TaskBrief(
    INSTRUCTION,
    Environment(
        cpus=2,
        memory_mb=1024,
        variables=("B", "A"),
        budget=Limits(tokens=2_000_000, cost_usd=Decimal(5), steps=200),
    ),
    acceptance=("make test", "a\nb"),
    memories=("The tests run with make test.",),
)
SUBTASK = Subtask(id="s1", title="Repair", instructions="Do it.\nSoon.", acceptance=["make unit"])


def header(message):
    content = message["content"]
    text = content.partition("\n</task>")[2]
    return dict(re.findall(r"^(Subtask|Round|Revision|Turn): (\S+)$", text, re.MULTILINE))


def openings():
    yield "planner", context.planner_opening(TASK)
    yield "coder", context.coder_opening(TASK, SUBTASK)
    yield "reviewer", context.reviewer_opening(TASK, SUBTASK, round_number=2, summary="Done.", diff="+x")


def test_every_opening_holds_the_instruction_verbatim_first():
    for _, message in openings():
        assert message["role"] == "user"
        assert message["content"].startswith(f"<task>\n{INSTRUCTION}\n</task>\n")


def test_header_lines_say_where_a_thread_belongs():
    assert {role: header(message) for role, message in openings()} == {
        "planner": {"Revision": "1"},
        "coder": {"Subtask": "s1"},
        "reviewer": {"Subtask": "s1", "Round": "2"},
    }


def test_openings_tell_the_facts():
    for _, message in openings():
        for fact in (
            "Toolset: python",
            "Network: none",
            "2 CPUs, 1024 MB memory",
            "A, B",
            "2,000,000 tokens, 5.00 US dollars, 200 steps",
            "- `make test`",
            "```sh\na\nb\n```",
            "The tests run with make test.",
        ):
            assert fact in message["content"]
    egress = TaskBrief("x", Environment(egress=("packages.example.org", "github.com")))
    assert "Network: only these hosts: packages.example.org, github.com" in context.planner_opening(egress)["content"]


def test_a_later_revision_says_why():
    done = [DoneSubtask("s0", "Ground", "laid")]
    text = context.planner_opening(TASK, revision=2, reason="It failed:\nboom", done=done)["content"]
    assert header(context.planner_opening(TASK, revision=2, reason="r")) == {"Revision": "2"}
    assert "It failed:\nboom" in text
    assert "- s0 (Ground): laid" in text


def test_the_reviewer_sees_summary_diff_and_former_findings():
    finding = Finding(severity="major", path="a.py", line=3, message="Wrong.")
    text = context.reviewer_opening(
        TASK, SUBTASK, round_number=2, summary="All good.", diff="--- a\n+++ b\n", former_findings=[finding]
    )["content"]
    assert "<summary>\nAll good.\n</summary>" in text
    assert "<diff>\n--- a\n+++ b\n</diff>" in text
    assert "1. [major] a.py:3: Wrong." in text


def test_a_long_diff_is_cut_in_the_middle():
    diff = "".join(f"+line {number}\n" for number in range(100_000))
    text = context.reviewer_opening(TASK, SUBTASK, round_number=1, summary="s", diff=diff)["content"]
    assert len(text) < context.DIFF_LIMIT + 5000
    assert "+line 0\n" in text
    assert "+line 99999\n" in text
    assert "bytes left out here" in text


def test_roles_of_one_task_share_the_longest_beginning():
    coder = context.coder_opening(TASK, SUBTASK)["content"]
    other = context.coder_opening(TASK, SUBTASK.model_copy(update={"id": "s2"}))["content"]
    assert coder.partition("Subtask:")[0] == other.partition("Subtask:")[0]


def test_the_same_input_gives_the_same_bytes():
    assert [canonical_json(message) for _, message in openings()] == [
        canonical_json(message) for _, message in openings()
    ]


def test_an_answer_is_kept_as_it_was():
    arguments = '{ "command" : "ls" }'
    message = context.assistant_message(
        "Let me look.", [{"id": "x", "name": "shell", "arguments": arguments}], reasoning="Hm."
    )
    assert message == {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "shell", "arguments": arguments}}],
        "reasoning_content": "Hm.",
    }
    assert "reasoning_content" not in context.assistant_message("x")


@pytest.mark.parametrize(
    "raw", ["", None, "{}", "nonsense", "[1]", "{" * 5000, '{"a": NaN}', '{"a": "\ud800"}', {"a": 1}]
)
def test_kept_arguments_are_always_an_object(raw):
    message = context.assistant_message(None, [{"id": "x", "name": "shell", "arguments": raw}])
    text = message["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(text), dict)
    canonical_json(message).decode()
    if raw == "nonsense":
        assert json.loads(text) == {"invalid_json": "nonsense"}


def test_ids_that_are_missing_or_doubled_are_replaced():
    calls = [{"id": identifier, "name": "shell", "arguments": "{}"} for identifier in ("a", "a", "", None, "call_1")]
    kept = [call["id"] for call in context.assistant_message(None, calls)["tool_calls"]]
    assert kept[0] == "a"
    assert len(set(kept)) == 5
    assert all(kept)


def test_no_message_is_without_content():
    assert context.assistant_message("")["content"] == "(empty answer)"
    assert context.tool_message("x", "")["content"] == "(no output)"


def test_notes_are_marked_by_where_they_come_from():
    assert context.user_note("x")["content"] == "[Note of the platform]\nx"
    assert context.person_message("x")["content"] == "[Message from a person]\nx"
    note = context.findings_note(1, [Finding(severity="minor", path="a", message="m")])["content"]
    assert note.startswith("[Review, round 1: changes requested]\n1. [minor] a: m\n")
    assert "- sleep 9" in context.sandbox_replaced_note(["sleep 9"])["content"]
    assert "`submit_review`" in context.no_tool_call_note("reviewer")["content"]


def test_canonical_json():
    assert canonical_json({"b": 1, "a": [1.5, "é", None]}) == '{"a":[1.5,"é",null],"b":1}'.encode()
    assert json.loads(canonical_json("x\ud800\0")) == "x\ud800\0"
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert printable("a\ud800") == "a\\ud800"
    with pytest.raises(ValueError, match="Out of range float"):
        canonical_json(float("nan"))
    assert is_json_object('{"a": 1}')
    assert not is_json_object("1")


@pytest.mark.parametrize("raw", ['{"command": "ls', "[1, 2]", "not json", '{"command": "ls"}', '{"invalid_json": 5}'])
def test_what_the_model_wrote_is_kept_inside_what_is_sent_back(raw: str) -> None:
    message = context.assistant_message(None, [{"id": "a", "name": "shell", "arguments": raw}])
    assert context.written_arguments(message["tool_calls"][0]["function"]["arguments"]) == raw
