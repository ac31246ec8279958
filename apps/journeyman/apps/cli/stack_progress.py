"""How a starting stack is shown: a live table on a terminal, one line a part in a pipe."""

import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from rich.table import Table

_MARKS: Final = {
    "waiting": ("·", "dim"),
    "starting": ("…", "cyan"),
    "ready": ("✓", "green"),
    "restarting": ("↻", "yellow"),
    "failed": ("✗", "red"),
    "stopped": ("-", "dim"),
}


class ProgressView(Protocol):
    def update(self, parts: Sequence[dict[str, Any]], status: str) -> None:
        """Show how the parts are doing (each as in ``stack.json``)."""
        ...

    def finish(self) -> None:
        """The start is over; what comes later is told in plain lines."""
        ...


def progress_view(stream: IO[str]) -> ProgressView:
    return LiveProgress() if stream.isatty() else PlainProgress(stream)


class PlainProgress:
    """A line for every part that becomes ready, ends by itself, or fails."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.told: dict[str, tuple[str, int]] = {}

    def update(self, parts: Sequence[dict[str, Any]], status: str) -> None:
        for part in parts:
            now = (part["status"], part["restarts"])
            if self.told.get(part["name"]) == now:
                continue
            self.told[part["name"]] = now
            line = _line(part, status)
            if line:
                print(line, file=self._stream, flush=True)

    def finish(self) -> None:
        return


def _line(part: dict[str, Any], status: str) -> str | None:
    name = part["title"] or part["name"]
    if part["status"] == "ready":
        return f"{name} ready ({part['seconds']:.1f} s)"
    if part["status"] in {"restarting", "failed"} and status != "stopping":
        return f"{name} {part['status']}: {part['detail']}"
    return None


class LiveProgress:
    """A table that is drawn anew while the stack starts; afterwards plain lines."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._parts: list[dict[str, Any]] = []
        self._began: dict[str, float] = {}
        self._console = Console()
        self._live: Live | None = Live(
            console=self._console, get_renderable=self._table, refresh_per_second=10, transient=False
        )
        self._plain = PlainProgress(self._console.file)
        self._live.start()

    def update(self, parts: Sequence[dict[str, Any]], status: str) -> None:
        if self._live is None:
            self._plain.update(parts, status)
            return
        self._parts = list(parts)
        for part in parts:
            if part["status"] != "waiting":
                self._began.setdefault(part["name"], time.monotonic())

    def finish(self) -> None:
        if self._live is None:
            return
        self._live.refresh()
        self._live.stop()
        self._live = None
        self._plain.told = {part["name"]: (part["status"], part["restarts"]) for part in self._parts}

    def _table(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for part in self._parts:
            mark, style = _MARKS.get(part["status"], ("?", ""))
            seconds = part["seconds"]
            if seconds is None and part["status"] == "starting":
                seconds = time.monotonic() - self._began.get(part["name"], time.monotonic())
            table.add_row(
                Text(mark, style=style),
                part["title"] or part["name"],
                Text(part["status"], style=style),
                "" if seconds is None else f"{seconds:.1f} s",
                Text(part["detail"][:80], style="dim"),
            )
        return table
