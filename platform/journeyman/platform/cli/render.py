"""Tasks and their steps on a terminal (rich) or in a pipe (plain lines). Role = icon, label and colour; state = shape and word."""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from journeyman.platform.cli.steps import how_to_decide
from journeyman.platform.cli.text import duration, lines_of, moment, money, number, one_line, size
from journeyman.platform.cli.view import REPLAY_BANNER, Json, Line, Subtask, TaskView

ROLES: Final[dict[str, tuple[str, str]]] = {
    "planner": ("◆", "cyan"),
    "coder": ("●", "green"),
    "reviewer": ("▲", "magenta"),
    "platform": ("■", "blue"),
    "user": ("✎", "yellow"),
}
STATES: Final[dict[str, tuple[str, str]]] = {
    "queued": ("○", "dim"),
    "pending": ("○", "dim"),
    "preparing": ("◔", "blue"),
    "planning": ("◔", "cyan"),
    "awaiting_approval": ("◇", "yellow"),
    "running": ("◑", "green"),
    "verifying": ("◕", "blue"),
    "completed": ("✓", "green"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "errored": ("!", "red"),
    "cancelled": ("⊘", "yellow"),
    "stopped": ("⊘", "yellow"),
}
MARKS: Final = {"ok": ("✓", "green"), "bad": ("✗", "red"), "warn": ("!", "yellow"), "": (" ", "")}

LIVE_DETAIL: Final = 5
PLAIN_DETAIL: Final = 8
_PIPE_WIDTH: Final = 160


def console() -> Console:
    """A console that takes text as it is: no markup, no emoji codes, no highlighting of what models wrote.

    In a pipe lines are not broken, and tables are wider than a terminal.
    """
    terminal = is_terminal()
    return Console(
        markup=False, emoji=False, highlight=False, soft_wrap=not terminal, width=None if terminal else _PIPE_WIDTH
    )


def is_terminal() -> bool:
    return sys.stdout.isatty()


def role_style(role: str) -> tuple[str, str]:
    return ROLES.get(role, ("·", "white"))


def state_words(state: str, verified: bool | None = None) -> str:
    """``✓ succeeded``, with ``(not verified)`` where no acceptance command said so."""
    icon = STATES.get(state, ("·", ""))[0]
    note = " (not verified)" if state == "succeeded" and not verified else ""
    return f"{icon} {state.replace('_', ' ')}{note}"


def plain_line(line: Line, detail: int | None = PLAIN_DETAIL) -> str:
    """One step as plain text; further lines are indented under it."""
    icon, _ = role_style(line.role)
    mark = MARKS[line.status][0] if line.status else " "
    first = f"{line.time}  {icon} {line.role:<9}{mark} {line.text}"
    return "\n".join([first, *(f"{'':>24}{text}".rstrip() for text in shown_detail(line, detail))])


def rich_line(line: Line, detail: int | None = LIVE_DETAIL) -> RenderableType:
    icon, colour = role_style(line.role)
    mark, mark_style = MARKS[line.status]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(style=colour, no_wrap=True, width=11)
    grid.add_column(style=mark_style, no_wrap=True, width=1)
    grid.add_column(overflow="fold")
    body = Text(line.text, style=mark_style if line.status in {"bad", "warn"} else "")
    for text in shown_detail(line, detail):
        body.append("\n")
        body.append(text, style=_detail_style(text))
    grid.add_row(line.time, f"{icon} {line.role}", mark, body)
    return grid


def _detail_style(text: str) -> str:
    if text.startswith("+ "):
        return "green"
    return "red" if text.startswith("- ") else "dim"


def shown_detail(line: Line, limit: int | None) -> list[str]:
    return [] if line.quiet else cut(line.detail, limit)


def cut(lines: Sequence[str], limit: int | None) -> list[str]:
    """At most ``limit`` lines: the first and, since errors stand at the end, mostly the last."""
    if limit is None or len(lines) <= limit:
        return list(lines)
    head = max(1, limit // 3)
    tail = limit - head - 1
    return [*lines[:head], f"… {len(lines) - head - tail} more lines …", *lines[len(lines) - tail :]]


class LiveView:
    """The lower part of the screen while a task runs: header, plan, what is going on at this moment."""

    def __init__(self, view: TaskView) -> None:
        self.view = view
        self.gap: str | None = None
        """Why the event stream is away at the moment."""
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(Panel(Group(*self._parts(options)), title=self._title(), title_align="left"), options)

    def _title(self) -> Text:
        return Text(f" {self.view.title or self.view.task_id} ", style="bold")

    def _parts(self, options: ConsoleOptions) -> Iterable[RenderableType]:
        view = self.view
        yield header(view)
        if view.replay:
            yield Text(f"▷ {REPLAY_BANNER}", style="yellow")
        if view.subtasks:
            yield Text()
            # Long plans: what is going on matters more than what is done.
            room = max(4, options.max_height - 12) if options.max_height else 20
            yield plan_tree(view.subtasks.values(), room)
        running = list(view.running.values())[-4:]
        if running and not view.ended:
            yield Text()
        for entry in running if not view.ended else []:
            icon, colour = role_style(entry.role)
            begun = moment(entry.since)
            took = f"  {duration(max(0.0, time.time() - begun.timestamp()))}" if begun else ""
            row = Table.grid(padding=(0, 1))
            row.add_column(no_wrap=True)
            row.add_column(style=colour, no_wrap=True)
            row.add_column(overflow="ellipsis", no_wrap=True)
            row.add_column(style="dim", no_wrap=True)
            row.add_row(self._spinner, f"{icon} {entry.role}", entry.text, took)
            yield row
        if view.waiting and not view.ended:
            yield Text()
            yield from waiting_lines(view)
        if self.gap is not None and not view.ended:
            yield Text(f"! connection lost ({self.gap}); trying again, the task goes on meanwhile", style="yellow")


def header(view: TaskView) -> Text:
    icon_style = STATES.get(view.state, ("·", ""))[1]
    text = Text(state_words(view.state, view.verified), style=f"bold {icon_style}".strip())
    if view.paused:
        text.append(f"  ‖ paused: {view.paused.replace('_', ' ')}", style="bold yellow")
    facts = [duration(view.elapsed(time.time())), f"{number(view.tokens)} tokens"]
    if view.cost_usd is not None:
        facts.append(money(view.cost_usd))
    text.append("  " + " · ".join(facts), style="not bold default")
    text.append(f"  {view.task_id}", style="not bold dim")
    return text


def waiting_lines(view: TaskView) -> Iterable[Text]:
    """What waits for a person, each with the commands that decide it."""
    for approval_id, what in list(view.waiting.items())[-4:]:
        yield Text(f"◇ waits for approval: {what}", style="bold yellow")
        for line in how_to_decide(view, approval_id):
            yield Text(f"  {line}", style="yellow")
    if len(view.waiting) > 4:
        yield Text(f"  … and {len(view.waiting) - 4} more: journeyman approvals {view.task_id}", style="yellow")


def plan_tree(subtasks: Iterable[Subtask], room: int = 1000) -> RenderableType:
    entries = list(subtasks)
    shown = entries
    if len(entries) > room:
        shown = [entry for entry in entries if entry.state != "completed"][:room] or entries[-room:]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for entry in shown:
        icon, style = STATES.get(entry.state, ("·", ""))
        words = Text(entry.title, style="dim" if entry.state == "pending" else "")
        notes = [entry.state]
        if entry.rounds > 1:
            notes.append(f"{entry.rounds} rounds")
        if entry.depends_on and entry.state == "pending":
            notes.append("after " + ", ".join(one_line(other, 30) for other in entry.depends_on))
        words.append(f"  {' · '.join(notes)}", style="dim")
        grid.add_row(Text(icon, style=style), words)
    if len(shown) < len(entries):
        grid.add_row("", Text(f"… and {len(entries) - len(shown)} more", style="dim"))
    return grid


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str | None = None) -> Table:
    found = Table(*columns, title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        found.add_row(*row)
    return found


def receipts_table(receipts: Iterable[Json]) -> Table:
    """Receipts as the API has them: what the platform itself ran, in a clean sandbox, and what came of it."""
    rows = []
    for receipt in receipts:
        passed = bool(receipt.get("passed"))
        icon, style = ("✓", "green") if passed else ("✗", "red")
        code = receipt.get("exit_code")
        took = receipt.get("duration_s")
        rows.append(
            (
                Text(f"{icon} {'passed' if passed else 'failed'}", style=style),
                one_line(str(receipt.get("command", "")), 300),
                "-" if code is None else str(code),
                duration(float(took)) if took is not None else "-",
            )
        )
    return table(("result", "acceptance command", "exit", "time"), rows, title="Receipts")


def artifacts_table(artifacts: Iterable[Json]) -> Table:
    rows = [
        (
            one_line(str(entry.get("id", "")), 60),
            one_line(str(entry.get("kind", "")), 20),
            one_line(str(entry.get("name", "")), 120),
            size(int(entry.get("size") or 0)),
        )
        for entry in artifacts
    ]
    return table(("id", "kind", "name", "size"), rows, title="Artifacts")


def diff_text(patch: str) -> Text:
    """A unified diff in colours, safe for a terminal."""
    text = Text()
    for line in lines_of(patch):
        style = ""
        if line.startswith(("+++", "---", "diff ", "index ")):
            style = "bold"
        elif line.startswith("@@"):
            style = "cyan"
        elif line.startswith("+"):
            style = "green"
        elif line.startswith("-"):
            style = "red"
        text.append(line + "\n", style=style)
    return text
