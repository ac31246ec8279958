"""Events of sandboxes, checkpoints, artifacts and acceptance commands."""

from typing import Final

from journeyman.apps.cli.steps.text import Describe, EventText
from journeyman.apps.cli.text import duration, one_line, size
from journeyman.apps.cli.view import PLATFORM, Json, TaskView


def _sandbox(_view: TaskView, event: Json, data: Json) -> EventText | None:
    if event["type"] == "sandbox.queued":
        return EventText(one_line(str(data.get("reason", "?")), 200), "warn", "", PLATFORM)
    if event["type"] == "sandbox.replaced":
        return EventText(
            "the sandbox was lost; a new one took over",
            "warn",
            f"lost: {data.get('lost', 'running processes')}",
            PLATFORM,
        )
    if event["type"] == "sandbox.limit_hit":
        return EventText(f"a command hit the sandbox's limit: {one_line(str(data.get('limit', '?')), 40)}", "warn")
    return None


def _acceptance(view: TaskView, event: Json, data: Json) -> EventText:
    passed = event["type"] == "acceptance.passed"
    view.receipts.append({**data, "passed": passed})
    seconds = data.get("duration_s")
    took = f" in {duration(float(seconds))}" if isinstance(seconds, int | float) else ""
    said = f"acceptance {'passed' if passed else 'failed'}: {one_line(str(data.get('command', '')), 200)}"
    code = "" if passed else f" (exit {one_line(str(data.get('exit_code')), 10)})"
    return EventText(f"{said}{code}{took}", "ok" if passed else "bad", "" if passed else str(data.get("output", "")))


def _artifact(_view: TaskView, _event: Json, data: Json) -> EventText:
    return EventText(
        f"hands over {one_line(str(data.get('name', '')), 120)} ({size(int(data.get('size') or 0))})", role=PLATFORM
    )


def _silent(_view: TaskView, _event: Json, _data: Json) -> None:
    return None


TEXTS: Final[dict[str, Describe]] = {
    "sandbox.queued": _sandbox,
    "sandbox.leased": _sandbox,
    "sandbox.replaced": _sandbox,
    "sandbox.released": _sandbox,
    "sandbox.limit_hit": _sandbox,
    "checkpoint.created": _silent,
    "artifact.created": _artifact,
    "acceptance.passed": _acceptance,
    "acceptance.failed": _acceptance,
}
