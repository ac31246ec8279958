"""Options that many commands share, and how a command ends."""

from typing import Annotated, Final, NoReturn

import typer

from journeyman.apps.exits import Exit

TASKS: Final = "Tasks"
STACK: Final = "This machine"
PROCESSES: Final = "Processes"

Url = Annotated[str | None, typer.Option("--url", help="Server address; otherwise JOURNEYMAN_URL or the local stack.")]
Key = Annotated[
    str | None, typer.Option("--api-key", help="Key jm_…; otherwise JOURNEYMAN_API_KEY or the local stack's admin.key.")
]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id: task_…")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds to watch; then exit code 5.")]
Wait = Annotated[bool, typer.Option("--wait", help="Watch until the end; the exit code tells the outcome.")]
StopOnPause = Annotated[
    bool, typer.Option("--stop-on-pause", help="Stop watching when the task pauses or waits for approval; exit code 5.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")]


def leave(code: Exit) -> NoReturn:
    """End the command."""
    raise typer.Exit(int(code))
