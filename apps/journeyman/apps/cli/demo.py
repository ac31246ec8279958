"""``journeyman demo``: a bundled task from submission to receipts, on the running stack or on one of its own."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

from rich.text import Text

from journeyman.apps.cli import render, watch
from journeyman.apps.cli.client import Api
from journeyman.apps.cli.server import (
    DEMO_KEY_FILE,
    Server,
    data_dir,
    find_server,
    read_key,
    read_stack,
    stack_api_url,
)
from journeyman.apps.cli.session import Target, engine_is_replay, print_table, suggest
from journeyman.apps.cli.suggestions import Suggestion, command, laid_out, terminal_width
from journeyman.apps.cli.tasks import print_diff, print_outcome
from journeyman.apps.cli.text import lines_of, one_line
from journeyman.apps.cli.view import TaskView
from journeyman.apps.embedded.processes import start_ticks_of
from journeyman.apps.exits import CommandError, Exit
from journeyman.platform import demos
from journeyman.platform.demos import Demo

_RESTART_AFTER_S = 10.0
"""A stack that was started less long ago is given time instead of being started again."""


def list_demos() -> Exit:
    print_table(("demo", "what it shows"), [(demo.slug, one_line(demo.title, 100)) for demo in demos.catalog()])
    suggest(Suggestion("run one", f"{command()} demo SLUG"))
    return Exit.OK


def run_demo(target: Target, slug: str, *, keep: bool, timeout_s: float | None) -> Exit:
    demo = demos.load(slug)
    with _server_for(target, keep=keep) as (api, own):
        replay = engine_is_replay(api)
        _introduce(demo, api, replay=replay)
        body = dict(demo.task)
        body["workspace"] = _send(api, demo)
        task = api.submit(body)
        view, code = watch.follow(
            api, task, style=watch.chosen_style(as_json=False), replay=replay, timeout_s=timeout_s
        )
        if view.ended:
            _show_result(api, view)
        _where_next(view, api, stops=own and not keep)
        return code


def _introduce(demo: Demo, api: Api, *, replay: bool) -> None:
    out = render.console()
    out.print(Text(f"Demo {demo.slug}: {one_line(demo.title, 200)}", style="bold"))
    for line in lines_of(str(demo.task.get("instruction", "")), 12):
        out.print(Text(f"  {line}"))
    for check in demo.task.get("acceptance", ()):
        out.print(Text(f"  accepted when: {one_line(str(check), 200)}", style="dim"))
    if replay:
        out.print(
            Text(
                "▷ No model is configured: the replay engine plays scripted answers. All else is real: commands run in a sandbox,\n"
                "  the tests decide. For a real model set JOURNEYMAN_MODEL_BASE_URL (docs/guides/models.md).",
                style="yellow",
            )
        )
    out.print(Text(f"  server {api.server.url}", style="dim"))
    out.print()


def _send(api: Api, demo: Demo) -> dict[str, Any]:
    if demo.workspace is None:
        return {"source": "none"}
    packed = demo.pack_workspace()
    uploaded = api.upload(io.BytesIO(packed), len(packed))
    return {"source": "archive", "upload_id": uploaded["id"]}


def _show_result(api: Api, view: TaskView) -> None:
    out = render.console()
    out.print()
    try:
        found = api.of_task(view.task_id, "diff")
    except CommandError as error:
        # A task that ended before it had a workspace has no diff; how it ended matters more.
        out.print(Text(error.message, style="dim"))
    else:
        out.print(Text("What changed", style="bold"))
        print_diff(found)
    print_outcome(api, view)


def _where_next(view: TaskView, api: Api, *, stops: bool) -> None:
    own = command()
    print()
    if stops:
        print("The stack of this demo stops now; its task is kept. Start it again to look around.")
        first = Suggestion("start it", f"{own} up --detach")
    else:
        print(f"The stack keeps running at {api.server.url}.")
        first = Suggestion("stop it", f"{own} down")
    further = (
        first,
        Suggestion("what came of it", f"{own} show {view.task_id}"),
        Suggestion("every event", f"{own} logs {view.task_id}"),
        Suggestion("its files", f"{own} artifacts {view.task_id} --download out"),
        Suggestion("a task of your own", f'{own} submit "…" --workspace DIR --accept "make check" --wait'),
    )
    print("\n".join(laid_out(further, terminal_width())))
    print("Read on: README.md, docs/guides/quickstart.md")


@contextmanager
def _server_for(target: Target, *, keep: bool) -> Iterator[tuple[Api, bool]]:
    """The API of a named server, of the running stack, or of one started here; whether it was started here."""
    # A SIGTERM (a CI's time limit) ends the stack too, as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, _terminated)
    named = target.url or os.environ.get("JOURNEYMAN_URL")
    stack = None if named else _Stack()
    own = stack is not None and stack.start_if_down()
    try:
        server = _apart(find_server(target.url, target.api_key))
        api = Api(server, locate=stack.locate if stack else None)
        try:
            yield api, own
        finally:
            api.close()
    finally:
        if own and not keep:
            _journeyman("down", check=False)
        signal.signal(signal.SIGTERM, before)


def _apart(server: Server) -> Server:
    """A local stack as the demos' own project sees it, which is made when it is missing: what their agents learn and use is
    not mixed with that of real tasks. A server or a key that somebody named is used as it is.
    """
    if server.directory is None:
        return server
    file = server.directory / DEMO_KEY_FILE
    key = read_key(file)
    if key is None or not _known(server, key):
        api = Api(server)
        try:
            made = api.request("POST", "/v1/projects", json={"name": "demo"}).json()
        finally:
            api.close()
        key = str(made["api_key"]["key"])
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as written:
            written.write(f"{key}\n")
    return replace(server, api_key=key)


def _known(server: Server, key: str) -> bool:
    """Whether the server takes the key: the data directory may have been set up anew around it."""
    api = Api(replace(server, api_key=key))
    try:
        api.get("/v1/me")
    except CommandError as error:
        if error.exit_code is Exit.PLATFORM:
            raise
        return False
    finally:
        api.close()
    return True


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


class _Stack:
    """The stack of this data directory."""

    def __init__(self) -> None:
        self._own = False
        self._last_start = 0.0

    def start_if_down(self) -> bool:
        """Returns whether it had to be started."""
        if _alive():
            return False
        self._start()
        self._own = True
        return True

    def locate(self) -> Server:
        """Find the server again. A stack of our own whose supervisor was killed is started again: its tasks go on."""
        if self._own and not _alive() and time.monotonic() - self._last_start > _RESTART_AFTER_S:
            print("# the stack is gone; starting it again, the task goes on from where it was", file=sys.stderr)
            self._start()
        return find_server()

    def _start(self) -> None:
        print(f"# starting the stack in {data_dir()}", file=sys.stderr, flush=True)
        self._last_start = time.monotonic()
        _journeyman("up", "--detach")


def _alive() -> bool:
    """Whether a supervisor runs for the data directory and has written down where its API is."""
    stack = read_stack(data_dir())
    if stack_api_url(stack) is None:
        return False
    pid, ticks = (stack or {}).get("pid"), (stack or {}).get("start_ticks")
    # A pid alone may belong to somebody else by now.
    return isinstance(pid, int) and start_ticks_of(pid) == ticks


def _journeyman(*arguments: str, check: bool = True) -> None:
    # What we have said comes before what the other process says.
    sys.stdout.flush()
    done = subprocess.run([sys.executable, "-m", "journeyman.apps.cli.main", *arguments], check=False)
    if check and done.returncode != 0:
        raise CommandError(f"`journeyman {' '.join(arguments)}` failed; the lines above say why.", Exit.PLATFORM)
