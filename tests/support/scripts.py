"""Builds scripts for the replay engine: what Planner, Coder and Reviewer answer, turn by turn."""

from typing import Any

Turn = dict[str, Any]


def call(tool: str, **arguments: Any) -> Turn:
    """A turn that calls one tool."""
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


def raw_call(tool: str, raw: str) -> Turn:
    """A turn whose arguments are sent as they are, broken or not."""
    return {"tool_calls": [{"name": tool, "raw_arguments": raw}]}


def shell(command: str, **arguments: Any) -> Turn:
    return call("shell", command=command, **arguments)


def subtask(id_: str = "s1", *, depends_on: list[str] | None = None, acceptance: list[str] | None = None) -> Turn:
    return {
        "id": id_,
        "title": f"Subtask {id_}",
        "instructions": f"Do {id_}.",
        "depends_on": depends_on or [],
        "acceptance": acceptance or [],
    }


def plan(*subtasks: Turn, acceptance: list[str] | None = None) -> Turn:
    return call("submit_plan", subtasks=list(subtasks) or [subtask()], acceptance=acceptance or [])


def work(summary: str = "Done.") -> Turn:
    return call("submit_work", summary=summary)


def approve() -> Turn:
    return call("submit_review", verdict="approve", findings=[])


def reject(message: str = "This is not what was asked.") -> Turn:
    return call("submit_review", verdict="request_changes", findings=[{"severity": "major", "message": message}])


def planner(*turns: Turn, revision: int = 1) -> dict[str, Any]:
    return {"role": "planner", "revision": revision, "turns": list(turns)}


def coder(*turns: Turn, subtask_id: str = "s1") -> dict[str, Any]:
    return {"role": "coder", "subtask": subtask_id, "turns": list(turns)}


def reviewer(*turns: Turn, subtask_id: str = "s1", round_: int = 1) -> dict[str, Any]:
    return {"role": "reviewer", "subtask": subtask_id, "round": round_, "turns": list(turns)}


def simple(*coder_turns: Turn) -> list[dict[str, Any]]:
    """One subtask, approved at once."""
    return [planner(plan()), coder(*coder_turns, work()), reviewer(approve())]
