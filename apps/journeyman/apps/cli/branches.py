"""Checkpoints: listing them, going back to one, and going on from one in a new task."""

import sys
from typing import Any, Final

from journeyman.apps.cli import tasks
from journeyman.apps.cli.amounts import counted_tokens, spent_in_words
from journeyman.apps.cli.client import Api
from journeyman.apps.cli.inputs import text_or_file
from journeyman.apps.cli.session import Target, connected, print_json, print_table, suggest, warn
from journeyman.apps.cli.suggestions import Suggestion, command
from journeyman.apps.cli.text import clock, counted, one_line
from journeyman.apps.cli.view import TERMINAL, Json
from journeyman.apps.exits import Exit

_EFFECTS: Final = {
    "goes_on": "goes on",
    "kept": "stays as it is",
    "opened_anew": "begins anew",
    "set_aside": "is set aside",
}
_PATHS: Final = 20


def checkpoints(target: Target, task_id: str, *, limit: int, as_json: bool) -> Exit:
    """The newest checkpoints of a task, the newest first."""
    with connected(target) as api:
        path = f"/v1/tasks/{api.segment(task_id)}/checkpoints"
        found = list(api.pages(path, limit=limit))
        if as_json:
            print_json(found)
            return Exit.OK
        if not found:
            print("The task has no checkpoints yet.", file=sys.stderr)
            return Exit.OK
        who = _threads(api, task_id, {str(each["thread_id"]) for each in found})
        rows = [
            (
                str(each["id"]),
                str(each["event_seq"]),
                clock(each.get("created_at")),
                who.get(str(each["thread_id"]), "prepared") + (", handed over" if each["submitted"] else ""),
                str(each["plan_revision"] or "-"),
                str(each["epoch"] or "-"),
                counted_tokens(int(each["budget"].get("tokens", 0))),
            )
            for each in found
        ]
        print_table(("checkpoint", "event", "time", "after a step of", "plan", "rewinds", "spent"), rows)
        suggest(*_ways_on(api, task_id))
    return Exit.OK


def _ways_on(api: Api, task_id: str) -> list[Suggestion]:
    """What can be done from a checkpoint: a task that has ended does not go back."""
    own = command()
    look = Suggestion("look first", f"{own} rewind {task_id} CHECKPOINT --preview")
    back = Suggestion("go back", f"{own} rewind {task_id} CHECKPOINT")
    state = str(api.task(task_id)["state"])
    if state in TERMINAL:
        print(f"The task has ended ({state}): it does not go back, a fork goes on from there.", file=sys.stderr)
    elsewhere = Suggestion("go on in a new task", f"{own} fork {task_id} CHECKPOINT")
    return [look, elsewhere] if state in TERMINAL else [look, back, elsewhere]


def _threads(api: Api, task_id: str, wanted: set[str]) -> dict[str, str]:
    """What to call each thread: its role and subtask."""
    names: dict[str, str] = {}
    for event in api.events(task_id):
        thread = str(event.get("thread_id"))
        role = event["data"].get("role")
        if thread in wanted and thread not in names and isinstance(role, str):
            subtask = event.get("subtask_id")
            names[thread] = one_line(f"{role} of {subtask}" if subtask else role, 60)
    return names


def rewind(
    target: Target, task_id: str, checkpoint_id: str, *, message: str | None, preview: bool, as_json: bool
) -> Exit:
    """Take a task back to one of its checkpoints, or tell what that would change."""
    with connected(target) as api:
        if preview:
            found = api.get(f"/v1/tasks/{api.segment(task_id)}/checkpoints/{api.segment(checkpoint_id)}/preview")
            if as_json:
                print_json(found)
            else:
                _print_preview(found)
            return Exit.OK
        body: Json = {"checkpoint_id": checkpoint_id}
        if message is not None:
            body["message"] = message
        asked = api.command(f"/v1/tasks/{api.segment(task_id)}/rewind", body)
        if as_json:
            print_json(asked)
        else:
            print(f"{task_id} goes back to {checkpoint_id} as soon as what runs has stopped ({asked['id']}).")
    return Exit.OK


def _print_preview(found: Json) -> None:
    if not found["can_rewind"]:
        print("The task has ended: it does not go back. A fork would begin so:", file=sys.stderr)
    plan = f"plan {found['plan_revision_then']}" if found["plan_revision_then"] else "no plan yet"
    print(
        f"Goes on {found['state_then']}, {plan}; sets aside {counted(int(found['events_set_aside']), 'event')} "
        "(which the log keeps)."
    )
    for each in found["subtasks"]:
        now, then = each["now"] or "not planned", each["then"] or "not planned"
        print(f"  subtask {one_line(str(each['id']), 40)} ({one_line(str(each['title']), 80)}): "
              + (now if now == then else f"{now} -> {then}"))  # fmt: skip
    for each in found["threads"]:
        where = f" of {one_line(str(each['subtask_id']), 40)}" if each["subtask_id"] else ""
        aside = f", {counted(each['messages_set_aside'], 'message')} set aside" if each["messages_set_aside"] else ""
        print(f"  {each['role']}{where}: {_EFFECTS.get(each['effect'], each['effect'])}{aside}")
    for each in found["files"]:
        whose = f"subtask {one_line(str(each['subtask_id']), 40)}" if each["subtask_id"] else "the approved work"
        print(f"  files of {whose}: {each['added']} added, {each['modified']} modified, {each['deleted']} deleted")
        for change in each["data"][:_PATHS]:
            print(f"    {change['kind']:<9} {one_line(str(change['path']), 200)}")
        more = each["added"] + each["modified"] + each["deleted"] - min(_PATHS, len(each["data"]))
        if more:
            print(f"    and {more} more")
    for each in found["messages_set_aside"]:
        print(f"  message {each['number']} is set aside; send it again if it holds: {one_line(str(each['text']), 120)}")
    if found["approvals_withdrawn"]:
        print(f"  withdraws {counted(found['approvals_withdrawn'], 'approval')}")
    print(f"  spent so far, and stays spent: {spent_in_words(found['spent'])}")
    print(f"  a fork would inherit: {spent_in_words(found['inherited_by_fork'])}")


def fork(
    target: Target,
    task_id: str,
    checkpoint_id: str,
    *,
    instruction: str | None,
    budget: Json,
    wait: bool,
    as_json: bool,
    watching: dict[str, Any],
) -> Exit:
    """Go on from a checkpoint in a new task; prints its id."""
    body: Json = {"checkpoint_id": checkpoint_id}
    if instruction is not None:
        body["instruction"] = text_or_file(instruction)
    if budget:
        body["budget"] = budget
    with connected(target) as api:
        made = api.command(f"/v1/tasks/{api.segment(task_id)}/fork", body)
        warn(made)
        if wait:
            return tasks.watched(api, made, as_json=as_json, **watching)
        if as_json:
            print_json(made)
        else:
            print(made["id"])
            suggest(Suggestion("watch it", f"{command()} watch {made['id']}"))
    return Exit.OK
