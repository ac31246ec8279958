"""Step keys: under what is stored what a step did, so that a repeated activity finds it.

Messages, events, artifacts and ledger rows are unique by their key, which is the whole guarantee of "exactly once": it is built here.
The key of a step and of a pause, from which these begin, is that of :mod:`journeyman.workflows.types`, because it is part of the recorded
histories. A key names what was done, never the run or the attempt.
"""

from typing import Final

ANSWER: Final = ":answer"
"""End of the key of a model's answer."""
RESULT: Final = ":result"
"""End of the key of a tool call's result."""


def within_step(step_key: str) -> str:
    """How the keys of all that a step stored begin."""
    return f"{step_key}:"


def answer(step_key: str) -> str:
    """The model's answer of a step."""
    return f"{step_key}{ANSWER}"


def step_of_answer(key: str) -> str:
    """The step that an answer's key belongs to."""
    return key.removesuffix(ANSWER)


def tool_call(step_key: str, index: int) -> str:
    """A tool call by its position in the answer."""
    return f"{step_key}:{index}"


def step_of_call(call_key: str) -> tuple[str, int]:
    """The step of a tool call, and the call's position in its answer."""
    step_key, _, index = call_key.rpartition(":")
    return step_key, int(index)


def result(call_key: str) -> str:
    """The result of a tool call."""
    return f"{call_key}{RESULT}"


def part(key: str, name: str, *more: str | int) -> str:
    """Something else that a step, call, thread or task leaves under its own key, for example its ``checkpoint``."""
    return ":".join([key, name, *(str(each) for each in more)])


def state_change(task_id: str, *occasion: str | int) -> str:
    """A task's move to a state, on one occasion of its workflow."""
    return part(task_id, "state", *occasion)


def plan_approval(task_id: str, epoch: int) -> str:
    """How the keys of the questions about plans begin, in one epoch of a task."""
    return part(task_id, "plan", epoch, "")


def segment(thread_id: str, number: int) -> str:
    """A segment of a thread, which begins with a compaction."""
    return part(thread_id, "segment", number)
