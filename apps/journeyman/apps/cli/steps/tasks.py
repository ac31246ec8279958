"""Events of the task itself: its states, pauses, rewinds, forks and budget."""

from typing import Final

from journeyman.apps.cli.steps.plans import fold_plan
from journeyman.apps.cli.steps.text import Describe, EventText
from journeyman.apps.cli.text import one_line
from journeyman.apps.cli.view import Json, TaskView
from journeyman.apps.cli.waiting import for_pause


def _created(view: TaskView, event: Json, _data: Json) -> EventText:
    view.started_at = view.started_at or event.get("time")
    return EventText("task accepted")


def _state(view: TaskView, event: Json, data: Json) -> EventText:
    view.state = one_line(str(data.get("to", "")), 30)
    if view.ended:
        view.finished_at = event.get("time")
        view.running.clear()
    words = {
        "preparing": "prepares the workspace and checks the environment",
        "planning": "planning",
        "awaiting_approval": "waits for the plan to be approved",
        "running": "the work begins",
        "verifying": "runs the acceptance commands in a clean sandbox",
    }
    return EventText(words.get(view.state, view.state))


def _ended(view: TaskView, event: Json, data: Json) -> EventText:
    state = str(data.get("state") or event["type"].removeprefix("task."))
    view.state = "succeeded" if state == "completed" else one_line(state, 30)
    view.finished_at = event.get("time")
    view.verified = bool(data.get("verified"))
    failure = data.get("failure")
    view.failure = failure if isinstance(failure, dict) else None
    view.paused, view.pause = None, {}
    view.waiting.clear()
    view.running.clear()
    for subtask in view.subtasks.values():
        if subtask.state == "running":
            subtask.state = "stopped"
    if view.state == "succeeded":
        how = "every acceptance command passed" if view.verified else "not verified: there was no acceptance command"
        return EventText(f"task succeeded ({how})", "ok" if view.verified else "warn")
    why = str((view.failure or {}).get("message") or data.get("reason") or "")
    return EventText(f"task {view.state}", "warn" if view.state == "cancelled" else "bad", why)


def _paused(view: TaskView, _event: Json, data: Json) -> EventText:
    view.paused, view.pause = one_line(str(data.get("reason", "?")), 40), data
    return EventText(
        f"paused: {view.paused.replace('_', ' ')}",
        "warn",
        str(data.get("detail") or data.get("message") or ""),
        wait=for_pause(view.task_id, view.paused, data),
    )


def _resumed(view: TaskView, _event: Json, _data: Json) -> EventText:
    view.paused, view.pause = None, {}
    return EventText("goes on")


def _environment_checked(_view: TaskView, _event: Json, _data: Json) -> EventText:
    return EventText("environment checked", "ok")


def _environment_failed(_view: TaskView, _event: Json, data: Json) -> EventText:
    problems = data.get("problems")
    detail = "\n".join(str(problem) for problem in problems) if isinstance(problems, list) else ""
    return EventText("the environment is not fit for the task", "bad", detail)


def _branch(view: TaskView, event: Json, data: Json) -> EventText:
    """A rewind, or the beginning of a fork: the plan is as the event says, and nothing of before runs any more."""
    view.running.clear()
    view.subtasks = {}
    plan = data.get("plan")
    if isinstance(plan, dict):
        fold_plan(view, event, plan)
        for entry in plan.get("subtasks") or []:
            found = view.subtasks.get(str(entry.get("id"))) if isinstance(entry, dict) else None
            if found is not None:
                found.state, found.rounds = str(entry.get("state") or "pending"), int(entry.get("rounds") or 0)
    view.plan_revision = int(data.get("plan_revision") or 0)
    if event["type"] == "task.rewound":
        return EventText(
            f"taken back to event {data.get('to_seq')}; what was done since is set aside", "warn", role="user"
        )
    return EventText(f"goes on from event {data.get('from_seq')} of {one_line(str(data.get('from_task_id')), 60)}")


def _budget(_view: TaskView, event: Json, data: Json) -> EventText:
    what = {
        "warned": "the budget is nearly used up",
        "exhausted": "the budget is used up",
        "changed": "the budget was changed",
    }
    kind = str(event["type"])
    said = what.get(kind.removeprefix("budget."), kind)
    if data.get("limit") and data.get("of") is not None:
        whose = one_line(f"{data.get('level', 'task')}'s {data['limit']}", 60)
        said += f" ({whose}: {one_line(str(data.get('spent')), 30)} of {one_line(str(data['of']), 30)})"
    return EventText(said, "warn", str(data.get("detail") or ""))


TEXTS: Final[dict[str, Describe]] = {
    "task.created": _created,
    "task.state_changed": _state,
    "task.paused": _paused,
    "task.resumed": _resumed,
    "task.rewound": _branch,
    "task.forked": _branch,
    "task.completed": _ended,
    "task.failed": _ended,
    "task.errored": _ended,
    "task.cancelled": _ended,
    "environment.checked": _environment_checked,
    "environment.failed": _environment_failed,
    "budget.warned": _budget,
    "budget.exhausted": _budget,
    "budget.changed": _budget,
}
