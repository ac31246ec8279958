"""Tasks and their steps on a terminal (rich) or in a pipe (plain lines). Role = icon, label and colour; state = shape and word."""

import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from journeyman.apps.cli.amounts import counted_tokens
from journeyman.apps.cli.suggestions import laid_out
from journeyman.apps.cli.text import counted, duration, lines_of, moment, money, one_line, size
from journeyman.apps.cli.view import REPLAY_BANNER, Json, Line, Subtask, TaskView
from journeyman.apps.cli.waiting import waits

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

LIVE_DETAIL: Final = 4
PLAIN_DETAIL: Final = 7
_PIPE_WIDTH: Final = 160
_UNLIMITED: Final = 10_000
_ID: Final = re.compile(r"[a-z]+_[0-9a-f]{32}")


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
    more = [*shown_detail(line, detail), *line.advice()]
    return "\n".join([first, *(f"{'':>24}{text}".rstrip() for text in more)])


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
    if line.waits:
        body.append(f"\n{line.waits}")
    grid.add_row(line.time, f"{icon} {line.role}", mark, body)
    return grid


def command_lines(line: Line, width: int) -> list[Text]:
    """The commands of a step, to print below it over the whole width: a command that is broken cannot be copied."""
    return [Text(text, style="yellow") for text in laid_out(line.how, width)]


def _detail_style(text: str) -> str:
    if text.startswith("+ "):
        return "green"
    return "red" if text.startswith("- ") else "dim"


def shown_detail(line: Line, limit: int | None) -> list[str]:
    return [] if line.quiet else cut(line.detail, limit)


def cut(lines: Sequence[str], limit: int | None) -> list[str]:
    """At most ``limit`` of the lines, the first and, since errors stand at the end, mostly the last; and how many are missing."""
    if limit is None or len(lines) <= limit:
        return list(lines)
    if limit <= 0:
        return []
    head = limit // 3
    tail = limit - head
    return [*lines[:head], f"… {counted(len(lines) - limit, 'more line')} …", *lines[len(lines) - tail :]]


class LiveView:
    """The lower part of the screen while a task runs: header, plan, what is going on at this moment."""

    def __init__(self, view: TaskView) -> None:
        self.view = view
        self.gap: str | None = None
        """Why the event stream is away at the moment."""
        self.left = False
        """Nobody watches any more: what goes on at this moment is no longer shown."""
        self._spinner = Spinner("dots")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        panel = Panel(Group(*self._parts(options)), title=self._title(), title_align="left")
        # Below the frame, which would break commands.
        below = waiting_lines(self.view, options.max_width)
        yield from console.render(Group(panel, *below), options)

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
        running = [] if view.ended or self.left else list(view.running.values())[-4:]
        if running:
            yield Text()
        for entry in running:
            icon, colour = role_style(entry.role)
            begun = moment(entry.since)
            took = f"  {duration(max(0.0, time.time() - begun.timestamp()))}" if begun else ""
            row = Table.grid(padding=(0, 1), expand=True)
            row.add_column(no_wrap=True)
            row.add_column(style=colour, no_wrap=True)
            # This one alone is shortened.
            row.add_column(overflow="ellipsis", no_wrap=True, ratio=1)
            row.add_column(style="dim", no_wrap=True)
            row.add_row(self._spinner, f"{icon} {entry.role}", entry.text, took)
            yield row
        if self.gap is not None and not view.ended and not self.left:
            yield Text(f"! connection lost ({self.gap}); trying again, the task goes on meanwhile", style="yellow")


def header(view: TaskView) -> Text:
    icon_style = STATES.get(view.state, ("·", ""))[1]
    text = Text(state_words(view.state, view.verified), style=f"bold {icon_style}".strip())
    if view.paused:
        text.append(f"  ‖ paused: {view.paused.replace('_', ' ')}", style="bold yellow")
    facts = [duration(view.elapsed(time.time())), counted_tokens(view.tokens)]
    if view.cost_usd is not None:
        facts.append(money(view.cost_usd))
    text.append("  " + " · ".join(facts), style="not bold default")
    text.append(f"  {view.task_id}", style="not bold dim")
    return text


def waiting_lines(view: TaskView, width: int | None) -> Iterable[Text]:
    """What the task waits for, each with the commands that let it go on."""
    for wait in waits(view):
        yield Text(f"◇ {wait.what}", style="bold yellow")
        for line in laid_out(wait.how, width):
            yield Text(line, style="yellow")


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
            notes.append(counted(entry.rounds, "round"))
        if entry.depends_on and entry.state == "pending":
            notes.append("after " + ", ".join(one_line(other, 30) for other in entry.depends_on))
        words.append(f"  {' · '.join(notes)}", style="dim")
        grid.add_row(Text(icon, style=style), words)
    if len(shown) < len(entries):
        grid.add_row("", Text(f"… and {len(entries) - len(shown)} more", style="dim"))
    return grid


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str | None = None) -> Table:
    """Ids are never cut or broken: they are there to be copied."""
    found = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    entries = list(rows)
    for index, name in enumerate(columns):
        whole = any(_ID.match(str(row[index])) for row in entries)
        found.add_column(name, no_wrap=whole, overflow="fold")
    for row in entries:
        found.add_row(*row)
    return found


def listing(columns: Sequence[str], rows: Sequence[Sequence[str]], out: Console) -> RenderableType:
    """A table, or where that is too wide for the console each row as a block under its first cell."""
    found = table(columns, [[Text(cell) for cell in row] for row in rows])
    if Measurement.get(out, out.options.update(max_width=_UNLIMITED), found).minimum <= out.width:
        return found
    blocks: list[RenderableType] = []
    for first, *others in rows:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for name, cell in zip(columns[1:], others, strict=True):
            if cell:
                grid.add_row(f"  {name}", Text(cell))
        blocks += [Text(first, style="bold"), grid]
    return Group(*blocks, Text())


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
