"""Events of the plan and its subtasks."""

from typing import Final

from journeyman.apps.cli.steps.text import Describe, EventText
from journeyman.apps.cli.text import counted, one_line
from journeyman.apps.cli.view import PLATFORM, Json, Subtask, TaskView


def fold_plan(view: TaskView, event: Json, data: Json) -> EventText:
    view.plan_revision = int(data.get("revision") or view.plan_revision + 1)
    found = data.get("subtasks")
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    before = view.subtasks
    view.subtasks = {}
    for entry in entries:
        id_ = str(entry.get("id"))
        depends = entry.get("depends_on")
        view.subtasks[id_] = Subtask(
            id_,
            one_line(str(entry.get("title") or id_), 100),
            [str(other) for other in depends] if isinstance(depends, list) else [],
            state=before[id_].state if id_ in before and before[id_].state == "completed" else "pending",
        )
    edited = event["type"] == "plan.edited"
    what = "plan edited" if edited else "new plan"
    what = "plan" if event["type"] == "plan.proposed" else f"{what} (revision {view.plan_revision})"
    approval_id = str(data.get("approval_id"))
    if approval_id in view.waiting:
        view.waiting[approval_id] = f"plan, revision {view.plan_revision}"
    titles = [f"{index}. {subtask.title}" for index, subtask in enumerate(view.subtasks.values(), 1)]
    checks = data.get("acceptance")
    if isinstance(checks, list):
        titles += [f"accepted when: {check}" for check in checks]
    return EventText(f"{what}: {counted(len(entries), 'subtask')}", "", "\n".join(titles), "user" if edited else "")


def _subtask(view: TaskView, event: Json, data: Json) -> EventText:
    id_ = str(data.get("subtask_id") or event.get("subtask_id"))
    state = {"subtask.started": "running", "subtask.completed": "completed", "subtask.failed": "failed"}[event["type"]]
    if id_ in view.subtasks:
        view.subtasks[id_].state = state
        view.subtasks[id_].rounds = int(data.get("rounds") or view.subtasks[id_].rounds)
    words = {"running": "begins", "completed": "done", "failed": "given up"}[state]
    status = {"running": "", "completed": "ok", "failed": "bad"}[state]
    return EventText(
        f"subtask {words}: {view.subtask_title(id_)}", status, str(data.get("problem") or ""), role=PLATFORM
    )


def _merge(view: TaskView, event: Json, data: Json) -> EventText:
    title = view.subtask_title(str(data.get("subtask_id")))
    if event["type"] == "subtask.merged":
        return EventText(f"work merged with that of other subtasks: {title}", "ok", role=PLATFORM)
    paths = "\n".join(f"{each.get('path')} ({each.get('kind')})" for each in data.get("conflicts") or ())
    return EventText(
        f"work conflicts with that of other subtasks, back to its Coder: {title}", "warn", paths, role=PLATFORM
    )


TEXTS: Final[dict[str, Describe]] = {
    "plan.proposed": fold_plan,
    "plan.revised": fold_plan,
    "plan.edited": fold_plan,
    "subtask.started": _subtask,
    "subtask.completed": _subtask,
    "subtask.failed": _subtask,
    "subtask.merged": _merge,
    "subtask.conflicted": _merge,
}
