"""Events of approvals and of decisions on plans."""

from typing import Final

from journeyman.apps.cli.calls import describe_call
from journeyman.apps.cli.steps.text import Describe, EventText
from journeyman.apps.cli.text import lines_of, one_line
from journeyman.apps.cli.view import PLATFORM, Json, TaskView
from journeyman.apps.cli.waiting import for_approval


def _approval(view: TaskView, event: Json, data: Json) -> EventText:
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
        return EventText(wait.what, "warn", "\n".join([*lines_of(detail), *why]), wait=wait)
    what = view.waiting.get(id_, "")
    if event["type"] == "approval.escalated":
        wait = for_approval(view, id_)
        return EventText(f"still {wait.what}, escalated", "warn", "", PLATFORM, wait=wait)
    view.waiting.pop(id_, None)
    decision = one_line(str(data.get("decision", "")), 40)
    outcome = f" (counts as {one_line(str(data['outcome']), 20)})" if data.get("outcome") else ""
    edited = ", with changes" if data.get("edited") else ""
    role = "user" if data.get("decided_by") else PLATFORM
    status = {"approved": "ok", "rejected": "bad"}.get(decision, "warn")
    about = f": {what}" if what else ""
    return EventText(f"approval {decision}{edited}{outcome}{about}", status, str(data.get("note") or ""), role)


def _plan_decided(_view: TaskView, event: Json, data: Json) -> EventText:
    approved = event["type"] == "plan.approved"
    role = "user" if data.get("decided_by") else PLATFORM
    said = f"plan {event['type'].removeprefix('plan.')}"
    return EventText(said, "ok" if approved else "warn", str(data.get("note") or ""), role)


TEXTS: Final[dict[str, Describe]] = {
    "plan.approved": _plan_decided,
    "plan.rejected": _plan_decided,
    "approval.requested": _approval,
    "approval.escalated": _approval,
    "approval.decided": _approval,
}
