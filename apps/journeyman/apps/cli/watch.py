"""Following a task to its end: a live view on a terminal, plain lines in a pipe, one event a line as JSON."""

import json
import os
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, Protocol

from rich.live import Live

from journeyman.apps.cli import render
from journeyman.apps.cli.client import Api
from journeyman.apps.cli.session import suggest
from journeyman.apps.cli.steps.fold import fold_event
from journeyman.apps.cli.suggestions import Suggestion, command
from journeyman.apps.cli.view import REPLAY_BANNER, Json, Line, TaskView
from journeyman.apps.cli.waiting import waits
from journeyman.apps.exits import CommandError, Exit, exit_for

Style = Literal["live", "plain", "json"]

_USAGE_EVERY_S = 2.0
_REDRAW_EVERY_S = 0.125


def chosen_style(*, as_json: bool) -> Style:
    if as_json:
        return "json"
    return "live" if render.is_terminal() else "plain"


class _Screen(Protocol):
    """Where steps go."""

    def event(self, event: Json, line: Line | None) -> None: ...

    def gap(self, why: str | None) -> None: ...


class _JsonScreen:
    def event(self, event: Json, line: Line | None) -> None:  # noqa: ARG002
        print(json.dumps(event, ensure_ascii=True, separators=(",", ":")), flush=True)

    def gap(self, why: str | None) -> None:
        _tell_gap(why)


class _PlainScreen:
    def __init__(self, detail: int | None) -> None:
        self._detail = detail

    def event(self, event: Json, line: Line | None) -> None:  # noqa: ARG002
        if line is not None:
            print(render.plain_line(line, self._detail), flush=True)

    def gap(self, why: str | None) -> None:
        _tell_gap(why)


class _LiveScreen:
    """Redraws the lower part by itself, never while steps are printed above it.

    rich's own thread would: what it draws in the middle of a print leaves lines of the frame behind, wherever the frame's
    height has just changed.
    """

    def __init__(self, view: TaskView, detail: int) -> None:
        self._bottom = render.LiveView(view)
        self._live = Live(self._bottom, console=render.console(), auto_refresh=False, vertical_overflow="crop")
        self._detail = detail
        self._drawing = threading.Lock()
        self._over = threading.Event()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """On the screen for as long as the block."""
        with _unechoed(), self._live:
            redrawing = threading.Thread(target=self._redraw, name="live-view", daemon=True)
            redrawing.start()
            try:
                yield
            finally:
                self._over.set()
                redrawing.join()
                self._bottom.left = True

    def _redraw(self) -> None:
        while not self._over.wait(_REDRAW_EVERY_S):
            with self._drawing:
                self._live.refresh()

    def event(self, event: Json, line: Line | None) -> None:  # noqa: ARG002
        if line is not None:
            with self._drawing:
                out = self._live.console
                out.print(render.rich_line(line, self._detail))
                for text in render.command_lines(line, out.width):
                    out.print(text, soft_wrap=True)

    def gap(self, why: str | None) -> None:
        self._bottom.gap = why


def _tell_gap(why: str | None) -> None:
    said = "connection is back" if why is None else f"connection lost ({why}); trying again, the task goes on meanwhile"
    print(f"# {said}", file=sys.stderr, flush=True)


@contextmanager
def _screen(view: TaskView, style: Style, detail: int | None) -> Iterator[_Screen]:
    if style == "json":
        yield _JsonScreen()
    elif style == "plain":
        if view.replay:
            print(f"# {REPLAY_BANNER}", flush=True)
        yield _PlainScreen(render.PLAIN_DETAIL if detail is None else detail)
    else:
        screen = _LiveScreen(view, render.LIVE_DETAIL if detail is None else detail)
        with screen.shown():
            yield screen


@contextmanager
def _unechoed() -> Iterator[None]:
    """While the view redraws itself the terminal shows no keys: a ``^C`` in the last line would move it."""
    terminal = sys.stdout.fileno()
    try:
        # Of a terminal that is another's at the moment, changing it would stop this process.
        before = termios.tcgetattr(terminal) if os.tcgetpgrp(terminal) == os.getpgrp() else None
    except (OSError, termios.error):
        before = None
    if before is None:
        yield
        return
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        with suppress(OSError, termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def follow(
    api: Api,
    task: Json,
    *,
    style: Style,
    replay: bool = False,
    timeout_s: float | None = None,
    stop_on_pause: bool = False,
    detail: int | None = None,
) -> tuple[TaskView, Exit]:
    """Show the task from its first event to its end, and return what it came to and the exit code for it.

    Ctrl-C ends the watching, not the task. A timeout ends with ``Exit.UNFINISHED``.
    """
    view = TaskView.of(task, replay=replay)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    usage = _Usage(api, view)
    try:
        with _screen(view, style, detail) as screen:
            for event in api.follow(view.task_id, deadline=deadline, on_gap=screen.gap):
                if event is not None:
                    screen.event(event, fold_event(view, event))
                    usage.after(event)
                if stop_on_pause and (view.paused or view.waiting) and not view.ended:
                    return view, Exit.UNFINISHED
            late = not view.ended and deadline is not None and time.monotonic() > deadline
            if not view.ended and not late:
                # The stream's end is the server's word that no more events come; the task itself says what it is.
                view.state = str(api.task(view.task_id)["state"])
            if not late:
                usage.fetch()
    except KeyboardInterrupt:
        _say("No longer watching", view)
        return view, Exit.INTERRUPTED
    if late:
        _say(f"Still {view.state} after {timeout_s:g} s", view)
        return view, Exit.UNFINISHED
    return view, exit_for(view.state)


def _say(what: str, view: TaskView) -> None:
    """After the view is gone, what becomes of the task."""
    still = "the task waits on" if any(wait.how for wait in waits(view)) else "the task goes on"
    print(f"{what}; {still}.", file=sys.stderr)
    own = command()
    suggest(
        Suggestion("watch it", f"{own} watch {view.task_id}"), Suggestion("stop it", f"{own} cancel {view.task_id}")
    )


class _Usage:
    """Tokens and cost from the ledger, asked for now and then: events tell tokens only."""

    def __init__(self, api: Api, view: TaskView) -> None:
        self._api = api
        self._view = view
        self._next = time.monotonic() + _USAGE_EVERY_S

    def after(self, event: Json) -> None:
        if event.get("type") == "model.completed" and time.monotonic() >= self._next:
            self.fetch()

    def fetch(self) -> None:
        try:
            usage = self._api.of_task(self._view.task_id, "usage")
        except CommandError:
            return
        self._next = time.monotonic() + _USAGE_EVERY_S
        take_usage(self._view, usage)


def take_usage(view: TaskView, usage: Json) -> None:
    """Fill in tokens and cost from a task's usage document."""
    total = usage.get("total")
    total = total if isinstance(total, dict) else usage
    tokens = total.get("tokens")
    if tokens is None:
        tokens = (total.get("input_tokens") or total.get("prompt_tokens") or 0) + (
            total.get("output_tokens") or total.get("completion_tokens") or 0
        )
    view.tokens = int(tokens) or view.tokens
    cost = total.get("cost_usd")
    view.cost_usd = None if cost is None else str(cost)
