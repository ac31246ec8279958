"""The comparison of two runs: blind to recovery, and to nothing else."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.endurance.projection import (
    LedgerRow,
    LogBroken,
    differences,
    ledger_differences,
    project,
    project_ledger,
)
from journeyman.agents.context import sandbox_replaced_note
from journeyman.platform.sandboxes.errors import LOST_WHILE_RUNNING

Log = list[dict[str, Any]]
CODER = {"thread_id": "thr_1", "subtask_id": "s1"}


def event(type_: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": type_, "thread_id": None, "subtask_id": None, "data": data, **more}


def started(step: int, attempt: int = 1) -> dict[str, Any]:
    return event("model.started", {"role": "coder", "step": step, "attempt": attempt}, **CODER)


def completed(step: int) -> dict[str, Any]:
    usage = {"prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 5}
    data = {"role": "coder", "step": step, "model": "m", "finish_reason": "tool_calls", "usage": usage, "ttft_s": 0.1}
    return event("model.completed", data, **CODER)


def acted(step: int, command: str, text: str, snapshot: str, **result: Any) -> Log:
    call = {"role": "coder", "call_id": f"thr_1:{step}:0", "tool": "shell"}
    return [
        event("agent.tool_call", {**call, "arguments": {"command": command}}, **CODER),
        event("agent.tool_result", {**call, "ok": True, "text": text, "duration_s": 0.5, **result}, **CODER),
        event("checkpoint.created", {"snapshot": snapshot, "plan_revision": 1, "checkpoint_id": f"c{step}"}, **CODER),
    ]


def numbered(*parts: dict[str, Any] | Log) -> Log:
    flat = [entry for part in parts for entry in (part if isinstance(part, list) else [part])]
    return [{**copy.deepcopy(entry), "seq": seq} for seq, entry in enumerate(flat, 1)]


def calm() -> Log:
    return numbered(
        event("task.created", {"title": "t"}),
        started(0),
        completed(0),
        acted(0, "echo 1", f"1 {'cmd_' + 'a' * 32}", "snap1", exit_code=0),
        started(1),
        completed(1),
        acted(1, "echo 2", "2", "snap2", exit_code=0),
        event("task.completed", {"state": "succeeded", "verified": True}),
    )


def row(step: int, purpose: str = "answer", **more: Any) -> LedgerRow:
    values: dict[str, Any] = {
        "kind": "model",
        "step_key": f"thr_1:{step}:{purpose}",
        "state": "settled",
        "estimated": False,
        "model": "m",
        "prompt_tokens": 10,
        "completion_tokens": 5,
    }
    return LedgerRow(**(values | more))


def test_recovery_does_not_show() -> None:
    note = sandbox_replaced_note(["sleep 9 &", "make"])["content"]
    stormy = numbered(
        event("task.created", {"title": "t"}),
        started(0),
        event("model.failed", {"role": "coder", "step": 0, "attempt": 1}, **CODER),
        event("task.paused", {"reason": "model_unavailable"}),
        started(0, 2),
        event("task.resumed", {"reason": "model_unavailable"}),
        completed(0),
        acted(0, "echo 1", f"Error: {LOST_WHILE_RUNNING}. Again.", "snap0", ok=False, error="sandbox_lost"),
        event("sandbox.replaced", {"sandbox_id": "b"}, **CODER),
        started(1),
        completed(1),
        acted(1, "echo 1", f"1 {'cmd_' + 'b' * 32}", "snap1", exit_code=0, reattached=True),
        started(2),
        completed(2),
        acted(2, "echo 2", f"{note}\n\n2", "snap2", exit_code=0),
        event("task.completed", {"state": "succeeded", "verified": True}),
    )
    left, right = project(calm()), project(stormy)
    assert differences(left, right) == []
    assert right.recovery["void step"] == 1
    books = project_ledger([row(0), row(1)], left)
    disturbed = project_ledger(
        [row(0, estimated=True), row(0), row(1, state="ambiguous"), row(1), row(2, prompt_tokens=99)], right
    )
    assert ledger_differences(books, disturbed, right) == []
    assert disturbed.recovery == {"estimated": 1, "ambiguous": 1}


def test_a_summary_is_a_payment_of_its_own() -> None:
    log = project(calm())
    books = project_ledger([row(0), row(1, "summary"), row(1)], log)
    assert books.problems == []
    assert ledger_differences(books, project_ledger([row(0), row(1, "summary"), row(1)], log), log) == []
    for others in ([row(0), row(1)], [row(0), row(1, "summary"), row(1, "summary"), row(1)]):
        assert ledger_differences(books, project_ledger(others, log), log) != []


def test_a_step_whose_checkpoint_says_that_its_effects_are_lost_does_not_count() -> None:
    void = acted(0, "echo 1", "1", "snap0", exit_code=0)
    void[-1]["data"]["effects_lost"] = True
    stormy = numbered(
        event("task.created", {"title": "t"}),
        completed(0),
        void,
        completed(1),
        acted(1, "echo 1", f"1 {'cmd_' + 'c' * 32}", "snap1", exit_code=0),
        completed(2),
        acted(2, "echo 2", "2", "snap2", exit_code=0),
        event("task.completed", {"state": "succeeded", "verified": True}),
    )
    assert differences(project(calm()), project(stormy)) == []


def _text(log: Log) -> None:
    log[4]["data"]["text"] = "other"


def _exit_code(log: Log) -> None:
    log[4]["data"]["exit_code"] = 1


def _snapshot(log: Log) -> None:
    log[5]["data"]["snapshot"] = "other"


def _command(log: Log) -> None:
    log[3]["data"]["arguments"] = {"command": "rm -rf /"}


def _unverified(log: Log) -> None:
    log[-1]["data"]["verified"] = False


def _paused_by_a_person(log: Log) -> None:
    log.insert(1, event("task.paused", {"reason": "user"}))


def _artifact(log: Log) -> None:
    log.insert(-1, event("artifact.created", {"kind": "file", "name": "x", "media_type": "text/plain"}))


@pytest.mark.parametrize(
    "change", [_text, _exit_code, _snapshot, _command, _unverified, _paused_by_a_person, _artifact]
)
def test_everything_else_shows(change: Callable[[Log], None]) -> None:
    log = calm()
    change(log)
    assert differences(project(calm()), project(numbered(log))) != []


def _gap(log: Log) -> None:
    del log[3]


def _result_twice(log: Log) -> None:
    log.insert(5, {**log[4]})


def _call_without_result(log: Log) -> None:
    del log[4]


def _step_left_out(log: Log) -> None:
    log[7]["data"]["step"] = 2


def _unknown(log: Log) -> None:
    log.insert(1, event("weather.changed", {}))


@pytest.mark.parametrize("change", [_result_twice, _call_without_result, _step_left_out, _unknown])
def test_a_log_that_contradicts_itself_is_refused(change: Callable[[Log], None]) -> None:
    log = calm()
    change(log)
    with pytest.raises(LogBroken):
        project(numbered(log))


def test_a_gap_is_refused() -> None:
    log = calm()
    _gap(log)
    with pytest.raises(LogBroken):
        project(log)


@pytest.mark.parametrize(
    "rows",
    [
        [row(0), row(0), row(1)],
        [row(0)],
        [row(0), row(1, state="ambiguous")],
        [row(0), row(1, completion_tokens=6)],
        [row(0), row(1, prompt_tokens=11)],
        [row(0), row(1), row(1, state="reserved")],
        [row(0), row(1), row(7)],
    ],
    ids=["twice", "never", "ambiguous alone", "another answer", "another prompt", "still open", "of no step"],
)
def test_a_ledger_that_differs_shows(rows: list[LedgerRow]) -> None:
    log = project(calm())
    books = project_ledger([row(0), row(1)], log)
    assert ledger_differences(books, project_ledger(rows, log), log) != []
