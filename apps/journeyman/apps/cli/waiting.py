"""What a task waits for, and the commands that let it go on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from journeyman.apps.cli.amounts import NAMES, OPTIONS, more, used
from journeyman.apps.cli.suggestions import Suggestion, command
from journeyman.apps.cli.view import Json, TaskView

_SHOWN: Final = 4
"""So many approvals are shown with their commands; of more it is said where they are listed."""


@dataclass(frozen=True, slots=True)
class Wait:
    """``what`` is a line; without ``how`` nothing has to be done."""

    what: str
    how: tuple[Suggestion, ...] = ()


def waits(view: TaskView) -> Iterator[Wait]:
    """All that keeps a task from going on, as far as its view knows."""
    if view.ended:
        return
    if view.paused:
        yield for_pause(view.task_id, view.paused, view.pause)
    if view.sandbox_wait:
        yield Wait(f"{view.sandbox_wait} Nothing has to be done here.")
    pending = list(view.waiting)
    for approval_id in pending[-_SHOWN:]:
        yield for_approval(view, approval_id)
    if len(pending) > _SHOWN:
        yield Wait(
            f"{len(pending) - _SHOWN} more wait for approval",
            (Suggestion("all of them", _on(view.task_id, "approvals")),),
        )


def for_pause(task_id: str, reason: str, detail: Json) -> Wait:
    """What a pause for that reason waits for; ``detail`` is what the task has as ``paused_detail``."""
    resume = Suggestion("go on", _on(task_id, "resume"))
    match reason:
        case "budget":
            return _for_budget(task_id, detail)
        case "circuit_breaker":
            advise = Suggestion("say what to do", f'{_on(task_id, "tell")} "…"')
            return Wait("waits for somebody to look: the agents go in circles", (advise, resume))
        case "model_unavailable":
            return Wait("waits for the model and goes on by itself once it answers; nothing has to be done here")
        case "model_account":
            return Wait(
                "waits for the model's account (key, credit or quota) and goes on by itself within a minute once it works again"
            )
        case "model_refused":
            return Wait(f"waits because the model refused the call: {_words(detail)}", (resume,))
        case "content_filtered":
            advise = Suggestion("say what to leave out", f'{_on(task_id, "tell")} "…"')
            return Wait(f"waits because a content filter refused the call: {_words(detail)}", (advise, resume))
        case "context_exhausted":
            return Wait(
                "waits for a model with a longer context (JOURNEYMAN_MODEL_CONTEXT_TOKENS)",
                (
                    Suggestion("go on with it", _on(task_id, "resume")),
                    Suggestion("or go back", _on(task_id, "checkpoints")),
                ),
            )
        case _:  # a person's pause, or a reason that this version does not know
            return Wait("waits until somebody lets it go on", (resume,))


def _for_budget(task_id: str, detail: Json) -> Wait:
    name, of = str(detail.get("limit")), _number(detail.get("of"))
    if name not in NAMES or of is None:
        return Wait(
            "waits for a larger budget",
            (
                Suggestion("look", _on(task_id, "usage")),
                Suggestion("go on", f"{_on(task_id, 'resume')} --budget-tokens N"),
            ),
        )
    spent = _number(detail.get("spent")) or 0.0
    value = more(name, max(of, spent + (_number(detail.get("requested")) or 0.0)))
    if detail.get("level") != "project":
        larger = Suggestion("go on", f"{_on(task_id, 'resume')} --budget-{OPTIONS[name]} {value}")
        return Wait(f"waits for a larger budget: {used(name, spent, of)} used", (larger,))
    period = str(detail.get("period") or "total")
    over = f"; goes on by itself when the {period} is over (UTC)" if period in {"day", "month"} else ""
    return Wait(
        f"waits for a larger budget of the project: {used(name, spent, of)} used{over}",
        (Suggestion("raise it", f"{command()} budget --{OPTIONS[name]} {value}"),),
    )


def for_approval(view: TaskView, approval_id: str) -> Wait:
    """What somebody has to decide, and how."""
    what = view.waiting.get(approval_id, "")
    how = [
        Suggestion("approve it", _on(approval_id, "approve")),
        Suggestion("reject it", f'{_on(approval_id, "reject")} --note "…"'),
    ]
    if what.startswith("plan,"):
        how.insert(0, Suggestion("look at it", _on(view.task_id, "plan")))
    return Wait(f"waits for approval: {what}", tuple(how))


def _on(id_: str, verb: str) -> str:
    return f"{command()} {verb} {id_}"


def _words(detail: Json) -> str:
    """What the engine said, on one line."""
    return " ".join(str(detail.get("detail") or "no reason given").split())[:300]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
