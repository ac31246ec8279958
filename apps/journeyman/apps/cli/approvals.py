"""What waits for a person: listing it, looking at a plan, changing it, deciding."""

import sys
import time
from pathlib import Path
from typing import Final

from rich.text import Text

from journeyman.apps.cli import render
from journeyman.apps.cli.calls import describe_call
from journeyman.apps.cli.client import Api
from journeyman.apps.cli.inputs import json_object
from journeyman.apps.cli.session import Target, connected, print_json, print_table, suggest
from journeyman.apps.cli.suggestions import Suggestion, command
from journeyman.apps.cli.text import duration, lines_of, moment, one_line
from journeyman.apps.cli.view import Json
from journeyman.apps.exits import CommandError, Exit

_SHOWN: Final = frozenset({"id", "task_id", "revision", "reason", "author", "created_at", "revisions"})
_PROGRESS: Final = frozenset({"state", "rounds", "summary", "base_snapshot", "snapshot"})
_EDITABLE: Final = "a plan, or all arguments of the call"


def inbox(target: Target, task_id: str | None, *, everything: bool, limit: int, as_json: bool) -> Exit:
    with connected(target) as api:
        state = None if everything else "pending"
        found = list(api.pages("/v1/approvals", limit=limit, state=state, task_id=task_id))
    if as_json:
        print_json(found)
        return Exit.OK
    if not found:
        print("Nothing waits for approval." if not everything else "There are no approvals yet.", file=sys.stderr)
        return Exit.OK
    rows = [
        (str(each["id"]), str(each["task_id"]), state_of(each, time.time()), what(each), one_line(reason(each), 80))
        for each in found
    ]
    print_table(("id", "task", "state", "what", "why"), rows)
    if not everything:
        own = command()
        suggest(Suggestion("approve", f"{own} approve ID"), Suggestion("reject", f'{own} reject ID --note "…"'))
    return Exit.OK


def state_of(approval: Json, now: float) -> str:
    """``pending, 3 min left``; ``escalated`` where somebody else was told."""
    state = str(approval.get("state"))
    if state != "pending":
        return state
    end = moment(approval.get("expires_at"))
    left = f", {duration(end.timestamp() - now)} left" if end and end.timestamp() > now else ", expiring" if end else ""
    return f"{state}{', escalated' if approval.get('escalated_at') else ''}{left}"


def what(approval: Json) -> str:
    """What would be done, in a line."""
    subject = approval.get("subject")
    subject = subject if isinstance(subject, dict) else {}
    if approval.get("kind") == "plan":
        return f"plan, revision {subject.get('revision', '?')}"
    return describe_call(str(subject.get("tool", "?")), subject.get("arguments"))[0]


def reason(approval: Json) -> str:
    subject = approval.get("subject")
    return str(subject.get("reason") or "") if isinstance(subject, dict) else ""


def decide(target: Target, id_: str, decision: str, *, note: str | None, edit: Path | None, as_json: bool) -> Exit:
    """``id_`` is an approval's, or a task's, whose plan is meant then."""
    edited = None if edit is None else json_object(edit, _EDITABLE)
    with connected(target) as api:
        if id_.startswith("task_"):
            id_ = _waiting_plan(api, id_)
        body: Json = {"decision": decision}
        if note is not None:
            body["note"] = note
        if edited is not None:
            is_plan = api.get(f"/v1/approvals/{api.segment(id_)}")["kind"] == "plan"
            body["edited"] = plain_plan(edited) if is_plan else edited
        decided = api.decide(id_, body)
    if as_json:
        print_json(decided)
    else:
        print(f"{decided['id']} is {decided['state']}: {what(decided)}")
    return Exit.OK


def _waiting_plan(api: Api, task_id: str) -> str:
    query = {"task_id": task_id, "kind": "plan", "state": "pending"}
    for approval in api.pages("/v1/approvals", limit=1, **query):
        return str(approval["id"])
    state = api.task(task_id)["state"]
    raise CommandError(
        f"No plan of {task_id} waits for approval; the task is {state}. What else waits:\n"
        f"  {command()} approvals {task_id}"
    )


def plan(target: Target, task_id: str, *, edit: Path | None, revision: int | None, as_json: bool) -> Exit:
    wanted = None if edit is None else plain_plan(json_object(edit, _EDITABLE))
    with connected(target) as api:
        if wanted is not None:
            found = api.edit_plan(task_id, wanted)
        else:
            found = api.of_task(task_id, "plan", revision=revision)
        waiting = list(api.pages("/v1/approvals", limit=1, task_id=task_id, kind="plan", state="pending"))
    if as_json:
        print_json(found)
        return Exit.OK
    _print_plan(found)
    if waiting:
        own = command()
        print("This plan waits for approval.", file=sys.stderr)
        suggest(
            Suggestion("approve it", f"{own} approve {task_id}"),
            Suggestion("reject it", f'{own} reject {task_id} --note "…"'),
            Suggestion("change it", f"{own} plan {task_id} --json > plan.json"),
            Suggestion("and then", f"{own} plan {task_id} --edit plan.json"),
        )
    return Exit.OK


def _print_plan(found: Json) -> None:
    out = render.console()
    author = f", edited by {found['author']}" if found.get("author") else ""
    out.print(Text(f"Plan, revision {found['revision']}{author}", style="bold"))
    for number, subtask in enumerate(found["subtasks"], 1):
        icon, style = render.STATES.get(str(subtask.get("state")), ("·", ""))
        after = f"  after {', '.join(subtask['depends_on'])}" if subtask.get("depends_on") else ""
        title = Text(f"{number}. ")
        title.append(f"{icon} ", style=style)
        title.append(f"{one_line(str(subtask['title']))}  ({one_line(str(subtask['id']), 40)}{after})", style="bold")
        out.print(title)
        for line in lines_of(str(subtask["instructions"])):
            out.print(Text(f"     {line}"))
        for check in subtask.get("acceptance") or []:
            out.print(Text(f"     accepted when: {one_line(str(check), 400)}", style="dim"))
    for check in found.get("acceptance") or []:
        out.print(Text(f"Accepted when: {one_line(str(check), 400)}", style="dim"))


def plain_plan(found: Json) -> Json:
    """What may be changed of a plan; the rest of what ``plan --json`` prints is left out, typing errors are not."""
    plain = {name: value for name, value in found.items() if name not in _SHOWN}
    if isinstance(plain.get("subtasks"), list):
        plain["subtasks"] = [
            {name: value for name, value in each.items() if name not in _PROGRESS} if isinstance(each, dict) else each
            for each in plain["subtasks"]
        ]
    return plain
