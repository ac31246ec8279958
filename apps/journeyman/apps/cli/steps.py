"""Events as steps for people: what each one means, in a line, and what it changes in the view of its task."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from journeyman.apps.cli.calls import describe_call
from journeyman.apps.cli.text import clock, counted, duration, lines_of, one_line, size
from journeyman.apps.cli.view import PLATFORM, Json, Line, Running, Subtask, TaskView
from journeyman.apps.cli.waiting import Wait, for_approval, for_pause

_READERS: Final = frozenset({"read_file", "list_files", "read_output"})
"""Tools whose results are long and already lie in the workspace."""

_WRITERS: Final = frozenset({"write_file", "edit_file"})
"""Tools whose calls tell already what they did."""

_STATUS: Final = re.compile(r"\s*\[exit code -?\d+\]\s*\Z")
"""What the platform adds to a command's output for the agent; the line above says the same."""


def tell(view: TaskView, event: Json) -> Line | None:
    """Fold one event into the view, in the order of ``seq``, and return the line to show for it, if any.

    Types that this version does not know become a line with their name.
    """
    view.last_seq = event["seq"]
    kind = str(event.get("type"))
    data = event.get("data")
    data = data if isinstance(data, dict) else {}
    role = view.role_of(event, data)
    teller = _TELLERS.get(kind)
    said = _Said(one_line(kind, 60)) if teller is None else teller(view, event, data)
    if said is None:
        return None
    return Line(
        seq=event["seq"],
        time=clock(event.get("time")),
        role=said.role or role,
        text=said.text,
        status=said.status,
        detail=tuple(lines_of(said.detail)) if said.detail else (),
        subtask=event.get("subtask_id"),
        quiet=said.quiet,
        waits=said.wait.what if said.wait and said.wait.what not in said.text else "",
        how=said.wait.how if said.wait else (),
    )


@dataclass(frozen=True, slots=True)
class _Said:
    text: str
    status: str = ""
    detail: str = ""
    role: str = ""
    quiet: bool = False
    wait: Wait | None = None


_Teller = Callable[[TaskView, Json, Json], _Said | None]


def _created(view: TaskView, event: Json, _data: Json) -> _Said:
    view.started_at = view.started_at or event.get("time")
    return _Said("task accepted")


def _state(view: TaskView, event: Json, data: Json) -> _Said:
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
    return _Said(words.get(view.state, view.state))


def _ended(view: TaskView, event: Json, data: Json) -> _Said:
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
        return _Said(f"task succeeded ({how})", "ok" if view.verified else "warn")
    why = str((view.failure or {}).get("message") or data.get("reason") or "")
    return _Said(f"task {view.state}", "warn" if view.state == "cancelled" else "bad", why)


def _paused(view: TaskView, _event: Json, data: Json) -> _Said:
    view.paused, view.pause = one_line(str(data.get("reason", "?")), 40), data
    return _Said(
        f"paused: {view.paused.replace('_', ' ')}",
        "warn",
        str(data.get("detail") or data.get("message") or ""),
        wait=for_pause(view.task_id, view.paused, data),
    )


def _resumed(view: TaskView, _event: Json, _data: Json) -> _Said:
    view.paused, view.pause = None, {}
    return _Said("goes on")


def _environment_checked(_view: TaskView, _event: Json, _data: Json) -> _Said:
    return _Said("environment checked", "ok")


def _environment_failed(_view: TaskView, _event: Json, data: Json) -> _Said:
    problems = data.get("problems")
    detail = "\n".join(str(problem) for problem in problems) if isinstance(problems, list) else ""
    return _Said("the environment is not fit for the task", "bad", detail)


def _plan(view: TaskView, event: Json, data: Json) -> _Said:
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
    return _Said(f"{what}: {counted(len(entries), 'subtask')}", "", "\n".join(titles), "user" if edited else "")


def _branch(view: TaskView, event: Json, data: Json) -> _Said:
    """A rewind, or the beginning of a fork: the plan is as the event says, and nothing of before runs any more."""
    view.running.clear()
    view.subtasks = {}
    plan = data.get("plan")
    if isinstance(plan, dict):
        _plan(view, event, plan)
        for entry in plan.get("subtasks") or []:
            found = view.subtasks.get(str(entry.get("id"))) if isinstance(entry, dict) else None
            if found is not None:
                found.state, found.rounds = str(entry.get("state") or "pending"), int(entry.get("rounds") or 0)
    view.plan_revision = int(data.get("plan_revision") or 0)
    if event["type"] == "task.rewound":
        return _Said(f"taken back to event {data.get('to_seq')}; what was done since is set aside", "warn", role="user")
    return _Said(f"goes on from event {data.get('from_seq')} of {one_line(str(data.get('from_task_id')), 60)}")


def _subtask(view: TaskView, event: Json, data: Json) -> _Said:
    id_ = str(data.get("subtask_id") or event.get("subtask_id"))
    state = {"subtask.started": "running", "subtask.completed": "completed", "subtask.failed": "failed"}[event["type"]]
    if id_ in view.subtasks:
        view.subtasks[id_].state = state
        view.subtasks[id_].rounds = int(data.get("rounds") or view.subtasks[id_].rounds)
    words = {"running": "begins", "completed": "done", "failed": "given up"}[state]
    status = {"running": "", "completed": "ok", "failed": "bad"}[state]
    return _Said(f"subtask {words}: {view.subtask_title(id_)}", status, str(data.get("problem") or ""), role=PLATFORM)


def _merge(view: TaskView, event: Json, data: Json) -> _Said:
    title = view.subtask_title(str(data.get("subtask_id")))
    if event["type"] == "subtask.merged":
        return _Said(f"work merged with that of other subtasks: {title}", "ok", role=PLATFORM)
    paths = "\n".join(f"{each.get('path')} ({each.get('kind')})" for each in data.get("conflicts") or ())
    return _Said(
        f"work conflicts with that of other subtasks, back to its Coder: {title}", "warn", paths, role=PLATFORM
    )


def _message(_view: TaskView, _event: Json, data: Json) -> _Said:
    text = str(data.get("text", ""))
    first, _, rest = text.strip().partition("\n")
    return _Said(f"“{one_line(first, 300)}”", "", rest)


def _reasoning(_view: TaskView, _event: Json, data: Json) -> _Said:
    return _Said("thinks", "", str(data.get("text", "")))


def _batch(data: Json) -> str:
    """What the calls of one step have in common: ``call_id`` is the step's key and a number."""
    return str(data.get("call_id")).rpartition(":")[0]


def _tool_call(view: TaskView, event: Json, data: Json) -> _Said:
    text, detail = describe_call(str(data.get("tool", "")), data.get("arguments"))
    view.running[str(data.get("call_id"))] = Running(view.role_of(event, data), text, str(event.get("time")))
    view.batches[_batch(data)] = view.batches.get(_batch(data), 0) + 1
    return _Said(text, "", detail)


def _tool_result(view: TaskView, _event: Json, data: Json) -> _Said | None:
    call = view.running.pop(str(data.get("call_id")), None)
    tool, ok, text = str(data.get("tool", "")), bool(data.get("ok")), str(data.get("text", ""))
    if ok and tool.startswith("submit_"):
        return None  # what was submitted has an event of its own
    exit_code = data.get("exit_code")
    if data.get("timed_out"):
        said = "ran out of time"
    elif data.get("oom_killed"):
        said = "ran out of memory"
    elif data.get("running"):
        said = "runs in the background"
    elif exit_code is not None:
        said = f"exit {one_line(str(exit_code), 10)}"
    elif data.get("signal"):
        said = f"killed by signal {one_line(str(data['signal']), 10)}"
    elif ok and tool in _READERS:
        said = counted(len(text.splitlines()), "line")
    else:
        said = "done" if ok else "refused"
    seconds = data.get("duration_s")
    took = f" in {duration(float(seconds))}" if isinstance(seconds, int | float) else ""
    # Calls of one step end one after the other: then each result says which call it belongs to.
    which = f": {call.text}" if call and view.batches.get(_batch(data), 0) > 1 else ""
    if exit_code is not None:
        text = _STATUS.sub("", text)
    return _Said(f"→ {said}{took}{which}", "ok" if ok else "bad", text, quiet=ok and tool in _READERS | _WRITERS)


def _model_started(view: TaskView, event: Json, data: Json) -> None:
    key = f"model:{event.get('thread_id')}"
    view.running[key] = Running(view.role_of(event, data), "waits for the model", str(event.get("time")))


def _model_completed(view: TaskView, event: Json, data: Json) -> None:
    view.running.pop(f"model:{event.get('thread_id')}", None)
    usage = data.get("usage")
    if isinstance(usage, dict):
        view.tokens += int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)


def _model_failed(view: TaskView, event: Json, data: Json) -> _Said:
    view.running.pop(f"model:{event.get('thread_id')}", None)
    again = "; tried again" if data.get("retryable") else ""
    return _Said(
        f"model call failed ({one_line(str(data.get('code', '')), 40)}{again})", "bad", str(data.get("message", ""))
    )


def _review(_view: TaskView, event: Json, data: Json) -> _Said:
    approved = event["type"] == "review.approved"
    found = data.get("findings")
    findings = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    detail = []
    for entry in findings:
        where = f"{entry['path']}:{entry['line']}: " if entry.get("path") and entry.get("line") else ""
        where = where or (f"{entry['path']}: " if entry.get("path") else "")
        detail.append(f"{entry.get('severity', 'note')}: {where}{entry.get('message', '')}")
    return _Said(
        "approves the work" if approved else "asks for changes", "ok" if approved else "warn", "\n".join(detail)
    )


def _sandbox(_view: TaskView, event: Json, data: Json) -> _Said | None:
    if event["type"] == "sandbox.replaced":
        return _Said(
            "the sandbox was lost; a new one took over",
            "warn",
            f"lost: {data.get('lost', 'running processes')}",
            PLATFORM,
        )
    if event["type"] == "sandbox.limit_hit":
        return _Said(f"a command hit the sandbox's limit: {one_line(str(data.get('limit', '?')), 40)}", "warn")
    return None


def _acceptance(view: TaskView, event: Json, data: Json) -> _Said:
    passed = event["type"] == "acceptance.passed"
    view.receipts.append({**data, "passed": passed})
    seconds = data.get("duration_s")
    took = f" in {duration(float(seconds))}" if isinstance(seconds, int | float) else ""
    said = f"acceptance {'passed' if passed else 'failed'}: {one_line(str(data.get('command', '')), 200)}"
    code = "" if passed else f" (exit {one_line(str(data.get('exit_code')), 10)})"
    return _Said(f"{said}{code}{took}", "ok" if passed else "bad", "" if passed else str(data.get("output", "")))


def _artifact(_view: TaskView, _event: Json, data: Json) -> _Said:
    return _Said(
        f"hands over {one_line(str(data.get('name', '')), 120)} ({size(int(data.get('size') or 0))})", role=PLATFORM
    )


def _budget(_view: TaskView, event: Json, data: Json) -> _Said:
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
    return _Said(said, "warn", str(data.get("detail") or ""))


def _breaker(_view: TaskView, _event: Json, data: Json) -> _Said:
    return _Said(
        f"circuit breaker: {one_line(str(data.get('message') or data.get('kind') or 'going in circles'), 300)}", "warn"
    )


def _memory(_view: TaskView, event: Json, data: Json) -> _Said | None:
    if event["type"] == "memory.written":
        return _Said(f"remembered: {one_line(str(data.get('text', '')), 200)}")
    count = len(data["memories"]) if isinstance(data.get("memories"), list) else 0
    return _Said(f"recalled {counted(count, 'thing')} from earlier tasks") if count else None


def _note(_view: TaskView, _event: Json, data: Json) -> _Said:
    closes = f", closes {data['closes']}" if data.get("closes") else ""
    first, _, rest = str(data.get("text", "")).strip().partition("\n")
    return _Said(
        f"{one_line(str(data.get('kind', 'note')), 20)} {data.get('number', '?')}{closes}: {one_line(first, 200)}",
        "",
        rest,
    )


def _steer(_view: TaskView, event: Json, data: Json) -> _Said:
    number = data.get("message_number", "?")
    match event["type"]:
        case "message.received":
            first, _, rest = str(data.get("text", "")).strip().partition("\n")
            urgent = " (interrupts)" if data.get("mode") == "interrupt" else ""
            return _Said(f"message {number}{urgent}: “{one_line(first, 200)}”", "", rest, role="user")
        case "message.delivered":
            return _Said(f"has message {number} before it")
        case _:
            return _Said(f"has read message {number} and goes on", "ok")


def _approval(view: TaskView, event: Json, data: Json) -> _Said:
    id_ = one_line(str(data.get("approval_id", "")), 60)
    if event["type"] == "approval.requested":
        subject = data.get("subject")
        subject = subject if isinstance(subject, dict) else {}
        if data.get("kind") == "plan":
            what, detail = f"plan, revision {one_line(str(subject.get('revision', '?')), 10)}", ""
        else:
            what, detail = describe_call(str(subject.get("tool", "?")), subject.get("arguments"))
        view.waiting[id_] = what
        why = [str(subject["reason"])] if subject.get("reason") else []
        wait = for_approval(view, id_)
        return _Said(wait.what, "warn", "\n".join([*lines_of(detail), *why]), wait=wait)
    what = view.waiting.get(id_, "")
    if event["type"] == "approval.escalated":
        wait = for_approval(view, id_)
        return _Said(f"still {wait.what}, escalated", "warn", "", PLATFORM, wait=wait)
    view.waiting.pop(id_, None)
    decision = one_line(str(data.get("decision", "")), 40)
    outcome = f" (counts as {one_line(str(data['outcome']), 20)})" if data.get("outcome") else ""
    edited = ", with changes" if data.get("edited") else ""
    role = "user" if data.get("decided_by") else PLATFORM
    status = {"approved": "ok", "rejected": "bad"}.get(decision, "warn")
    about = f": {what}" if what else ""
    return _Said(f"approval {decision}{edited}{outcome}{about}", status, str(data.get("note") or ""), role)


def _plan_decided(_view: TaskView, event: Json, data: Json) -> _Said:
    approved = event["type"] == "plan.approved"
    role = "user" if data.get("decided_by") else PLATFORM
    said = f"plan {event['type'].removeprefix('plan.')}"
    return _Said(said, "ok" if approved else "warn", str(data.get("note") or ""), role)


def _silent(_view: TaskView, _event: Json, _data: Json) -> None:
    return None


def _compacted(_view: TaskView, _event: Json, _data: Json) -> _Said:
    return _Said("the conversation was summarized to make room")


_TELLERS: Final[dict[str, _Teller]] = {
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
    "plan.proposed": _plan,
    "plan.revised": _plan,
    "plan.edited": _plan,
    "plan.approved": _plan_decided,
    "plan.rejected": _plan_decided,
    "subtask.started": _subtask,
    "subtask.completed": _subtask,
    "subtask.failed": _subtask,
    "subtask.merged": _merge,
    "subtask.conflicted": _merge,
    "agent.message": _message,
    "agent.reasoning": _reasoning,
    "agent.tool_call": _tool_call,
    "agent.tool_result": _tool_result,
    "agent.compacted": _compacted,
    "review.approved": _review,
    "review.changes_requested": _review,
    "model.started": _model_started,
    "model.completed": _model_completed,
    "model.failed": _model_failed,
    "sandbox.leased": _sandbox,
    "sandbox.replaced": _sandbox,
    "sandbox.released": _sandbox,
    "sandbox.limit_hit": _sandbox,
    "checkpoint.created": _silent,
    "artifact.created": _artifact,
    "acceptance.passed": _acceptance,
    "acceptance.failed": _acceptance,
    "message.received": _steer,
    "message.delivered": _steer,
    "message.acted_on": _steer,
    "approval.requested": _approval,
    "approval.escalated": _approval,
    "approval.decided": _approval,
    "budget.warned": _budget,
    "budget.exhausted": _budget,
    "budget.changed": _budget,
    "circuit_breaker.tripped": _breaker,
    "note.written": _note,
    "memory.written": _memory,
    "memory.recalled": _memory,
}
