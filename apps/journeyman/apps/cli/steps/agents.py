"""Events of an agent's work: messages, model calls, tool calls, reviews, notes and memories."""

import re
from typing import Final

from journeyman.apps.cli.calls import describe_call
from journeyman.apps.cli.steps.text import Describe, EventText
from journeyman.apps.cli.text import counted, duration, one_line
from journeyman.apps.cli.view import Json, Running, TaskView

_READERS: Final = frozenset({"read_file", "list_files", "read_output"})
"""Tools whose results are long and already lie in the workspace."""

_WRITERS: Final = frozenset({"write_file", "edit_file"})
"""Tools whose calls tell already what they did."""

_STATUS: Final = re.compile(r"\s*\[exit code -?\d+\]\s*\Z")
"""What the platform adds to a command's output for the agent; the line above says the same."""


def _message(_view: TaskView, _event: Json, data: Json) -> EventText:
    text = str(data.get("text", ""))
    first, _, rest = text.strip().partition("\n")
    return EventText(f"“{one_line(first, 300)}”", "", rest)


def _reasoning(_view: TaskView, _event: Json, data: Json) -> EventText:
    return EventText("thinks", "", str(data.get("text", "")))


def _batch(data: Json) -> str:
    """What the calls of one step have in common: ``call_id`` is the step's key and a number."""
    return str(data.get("call_id")).rpartition(":")[0]


def _tool_call(view: TaskView, event: Json, data: Json) -> EventText:
    text, detail = describe_call(str(data.get("tool", "")), data.get("arguments"))
    view.running[str(data.get("call_id"))] = Running(view.role_of(event, data), text, str(event.get("time")))
    view.batches[_batch(data)] = view.batches.get(_batch(data), 0) + 1
    return EventText(text, "", detail)


def _tool_result(view: TaskView, _event: Json, data: Json) -> EventText | None:
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
    return EventText(f"→ {said}{took}{which}", "ok" if ok else "bad", text, quiet=ok and tool in _READERS | _WRITERS)


def _model_started(view: TaskView, event: Json, data: Json) -> None:
    key = f"model:{event.get('thread_id')}"
    view.running[key] = Running(view.role_of(event, data), "waits for the model", str(event.get("time")))


def _model_completed(view: TaskView, event: Json, data: Json) -> None:
    view.running.pop(f"model:{event.get('thread_id')}", None)
    usage = data.get("usage")
    if isinstance(usage, dict):
        view.tokens += int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)


def _model_failed(view: TaskView, event: Json, data: Json) -> EventText:
    view.running.pop(f"model:{event.get('thread_id')}", None)
    again = "; tried again" if data.get("retryable") else ""
    return EventText(
        f"model call failed ({one_line(str(data.get('code', '')), 40)}{again})", "bad", str(data.get("message", ""))
    )


def _review(_view: TaskView, event: Json, data: Json) -> EventText:
    approved = event["type"] == "review.approved"
    found = data.get("findings")
    findings = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    detail = []
    for entry in findings:
        where = f"{entry['path']}:{entry['line']}: " if entry.get("path") and entry.get("line") else ""
        where = where or (f"{entry['path']}: " if entry.get("path") else "")
        detail.append(f"{entry.get('severity', 'note')}: {where}{entry.get('message', '')}")
    return EventText(
        "approves the work" if approved else "asks for changes", "ok" if approved else "warn", "\n".join(detail)
    )


def _breaker(_view: TaskView, _event: Json, data: Json) -> EventText:
    return EventText(
        f"circuit breaker: {one_line(str(data.get('message') or data.get('kind') or 'going in circles'), 300)}", "warn"
    )


def _memory(_view: TaskView, event: Json, data: Json) -> EventText | None:
    if event["type"] == "memory.written":
        return EventText(f"remembered: {one_line(str(data.get('text', '')), 200)}")
    count = len(data["memories"]) if isinstance(data.get("memories"), list) else 0
    return EventText(f"recalled {counted(count, 'thing')} from earlier tasks") if count else None


def _note(_view: TaskView, _event: Json, data: Json) -> EventText:
    closes = f", closes {data['closes']}" if data.get("closes") else ""
    first, _, rest = str(data.get("text", "")).strip().partition("\n")
    return EventText(
        f"{one_line(str(data.get('kind', 'note')), 20)} {data.get('number', '?')}{closes}: {one_line(first, 200)}",
        "",
        rest,
    )


def _steer(_view: TaskView, event: Json, data: Json) -> EventText:
    number = data.get("message_number", "?")
    match event["type"]:
        case "message.received":
            first, _, rest = str(data.get("text", "")).strip().partition("\n")
            urgent = " (interrupts)" if data.get("mode") == "interrupt" else ""
            return EventText(f"message {number}{urgent}: “{one_line(first, 200)}”", "", rest, role="user")
        case "message.delivered":
            return EventText(f"has message {number} before it")
        case _:
            return EventText(f"has read message {number} and goes on", "ok")


def _compacted(_view: TaskView, _event: Json, _data: Json) -> EventText:
    return EventText("the conversation was summarized to make room")


TEXTS: Final[dict[str, Describe]] = {
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
    "message.received": _steer,
    "message.delivered": _steer,
    "message.acted_on": _steer,
    "circuit_breaker.tripped": _breaker,
    "note.written": _note,
    "memory.written": _memory,
    "memory.recalled": _memory,
}
