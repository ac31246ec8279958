"""Tool calls with people's decisions on them, and the events of their results."""

import pytest

from journeyman.agents.tools import ParsedCall, ToolError, parse_call
from journeyman.workflows.activities.tool_calls import CallDecision, ExecutedCall, ToolCall, ToolResult
from journeyman.workflows.types import Step, TaskRef, ThreadRef

THREAD = ThreadRef(
    task=TaskRef(task_id="task_1", project_id="proj_1"), thread_id="thr_1", role="coder", revision=1, subtask_id="s1"
)
STEP = Step(thread=THREAD, number=4)


def made(tool: str = "shell", arguments: dict[str, object] | None = None) -> ToolCall:
    parsed = parse_call("coder", tool, {"command": "rm x"} if arguments is None else arguments)
    return ToolCall(2, f"{STEP.key}:2", "c2", tool, parsed)


def decision(state: str = "approved", *, edited: dict[str, object] | None = None) -> CallDecision:
    return CallDecision("apr_1", state, state == "approved", "text", edited)


def test_an_output_is_named_after_step_and_place() -> None:
    assert made().output_id == "out_4_2"


@pytest.mark.parametrize(
    ("tool", "arguments", "once"),
    [
        ("shell", {"command": "ls"}, True),
        ("edit_file", {"path": "f", "old": "a", "new": "b"}, True),
        ("write_file", {"path": "f", "content": ""}, False),
        ("read_file", {"path": "f"}, False),
        ("shell", {}, False),
    ],
)
def test_which_calls_must_not_be_executed_twice(tool: str, arguments: dict[str, object], once: bool) -> None:
    assert made(tool, arguments).runs_once is once


def test_a_rejected_call_is_not_started() -> None:
    call = made().decided("coder", decision("rejected"))
    assert (call.refused, call.runs_once) == (True, False)


def test_a_changed_call_runs_with_its_new_arguments() -> None:
    call = made().decided("coder", decision(edited={"command": "ls"}))
    assert isinstance(call.parsed, ParsedCall)
    assert call.parsed.values == {"command": "ls"}


def test_a_call_changed_into_an_invalid_one_says_so() -> None:
    call = made().decided("coder", decision(edited={"command": 3}))
    assert isinstance(call.parsed, ToolError)
    assert call.decision is not None
    assert "not into a valid one" in call.decision.text


def test_each_limit_is_an_event_beside_the_result() -> None:
    executed = ExecutedCall(made(), ToolResult("t", {"exit_code": 1}, ok=False, limits=("memory", "disk")), None)
    result, *limits = executed.events(STEP)
    assert (result.step_key, result.data["exit_code"]) == (f"{STEP.key}:2:result", 1)
    assert [event.data["limit"] for event in limits] == ["memory", "disk"]


def test_only_an_accepted_terminal_call_hands_over() -> None:
    submit = made("submit_work", {"summary": "s"})
    assert ExecutedCall(submit, ToolResult("Submitted."), None).handover is submit.parsed
    assert ExecutedCall(submit, ToolResult("no", ok=False), None).handover is None
    assert ExecutedCall(made(), ToolResult("t"), None).handover is None
