"""What the circuit breaker makes of the calls of one answer."""

import pytest

from journeyman.agents.loops import ObservedCall as Call
from journeyman.workflows.activities.breaker import watch
from journeyman.workflows.types import Step, TaskRef, ThreadRef


def step(number: int) -> Step:
    task = TaskRef(task_id="task_1", project_id="proj_1")
    return Step(
        thread=ThreadRef(task=task, thread_id="thr_1", role="coder", revision=1, subtask_id="s1"), number=number
    )


@pytest.mark.parametrize("arguments", [[f"write {number}" for number in range(200)], ["append a line"] * 200])
def test_an_answer_of_many_calls_that_changes_the_workspace_goes_in_no_circle(arguments: list[str]) -> None:
    calls = [Call(tool="shell", arguments=each, result="done") for each in arguments]
    first = watch(step(0), None, calls, "a" * 64)
    assert first.alarms == []
    assert watch(step(1), first.window, calls, "b" * 64).alarms == []


def test_an_answer_of_many_calls_that_changes_nothing_is_idle() -> None:
    calls = [Call(tool="read_file", arguments=f"file {number}", result=f"text {number}") for number in range(60)]
    first = watch(step(0), None, calls[:1], "a" * 64)
    watched = watch(step(1), first.window, calls, "a" * 64)
    assert [(alarm.kind, alarm.level) for alarm in watched.alarms] == [("idle", "nudge"), ("idle", "trip")]


def test_edits_that_take_each_other_back_are_seen_however_many_calls_an_answer_has() -> None:
    window, alarms = None, []
    for number in range(10):
        state = "ab"[number % 2]
        calls = [Call(tool="edit_file", arguments=f"{state}{part}", result="done") for part in range(3)]
        watched = watch(step(number), window, calls, state * 64)
        window, alarms = watched.window, [*alarms, *watched.alarms]
        if watched.tripped:
            break
    assert alarms[-1].level == "trip"
