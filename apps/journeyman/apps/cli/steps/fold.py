"""Events as steps for people: what each one means, in a line, and what it changes in the view of its task."""

from typing import Final

from journeyman.apps.cli.steps import agents, approvals, plans, sandboxes, tasks
from journeyman.apps.cli.steps.text import Describe, EventText
from journeyman.apps.cli.text import clock, lines_of, one_line
from journeyman.apps.cli.view import Json, Line, TaskView

_TEXTS: Final[dict[str, Describe]] = {
    **tasks.TEXTS,
    **plans.TEXTS,
    **agents.TEXTS,
    **approvals.TEXTS,
    **sandboxes.TEXTS,
}


def fold_event(view: TaskView, event: Json) -> Line | None:
    """Fold one event into the view, in the order of ``seq``, and return the line to show for it, if any.

    Types that this version does not know become a line with their name.
    """
    view.last_seq = event["seq"]
    kind = str(event.get("type"))
    data = event.get("data")
    data = data if isinstance(data, dict) else {}
    role = view.role_of(event, data)
    describe = _TEXTS.get(kind)
    found = EventText(one_line(kind, 60)) if describe is None else describe(view, event, data)
    if found is None:
        return None
    return Line(
        seq=event["seq"],
        time=clock(event.get("time")),
        role=found.role or role,
        text=found.text,
        status=found.status,
        detail=tuple(lines_of(found.detail)) if found.detail else (),
        subtask=event.get("subtask_id"),
        quiet=found.quiet,
        waits=found.wait.what if found.wait and found.wait.what not in found.text else "",
        how=found.wait.how if found.wait else (),
    )
