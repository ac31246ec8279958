"""The ``journeyman`` command, and the commands of this machine and of the platform's processes.

Signatures only: each command imports what it needs when it runs, so that ``--help`` is quick.
"""

import errno
import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from typer.core import TyperGroup

from journeyman.apps.cli import steering_commands, task_commands
from journeyman.apps.cli.deploy_commands import app as deploy_app
from journeyman.apps.cli.memory_commands import app as memory_app
from journeyman.apps.cli.options import PROCESSES, STACK, TASKS, AsJson, leave
from journeyman.apps.exits import CommandError, Exit
from journeyman.platform.kit.errors import JourneymanError


def _hush() -> None:
    """The reader of our output has seen enough (`| head`): what is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Commands(TyperGroup):
    """Commands under the headings they belong to, without rich: importing that would double the time of ``--help``."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _hush()
            raise typer.Exit from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                heading = heading if isinstance(heading, str) else "Commands"
                panels.setdefault(heading, []).append((name, command.get_short_help_str(limit=60)))
        for heading, rows in panels.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


app = typer.Typer(
    name="journeyman",
    cls=_Commands,
    help="Teams of AI agents carry long jobs to a verified end. Begin with: journeyman demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 succeeded, 1 the task failed, 2 wrong command or refused, 3 the platform failed, 4 cancelled, "
        "5 still unfinished, 130 interrupted."
    ),
)

for commands in (task_commands.app, steering_commands.app):
    app.registered_commands += commands.registered_commands
app.add_typer(memory_app, name="memory", rich_help_panel=TASKS)

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where everything is kept; otherwise JOURNEYMAN_DATA_DIR or ~/.journeyman."),
]


@app.command(rich_help_panel=STACK)
def up(
    data_dir: DataDir = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Of the API; otherwise 8700 or a free one.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, max=64, help="Worker processes; otherwise one a core.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when it is ready; it keeps running.")] = False,
) -> None:
    """Start the whole platform on this machine."""
    from journeyman.apps.cli import stack

    leave(stack.up(data_dir, port, workers, detach=detach))


@app.command(rich_help_panel=STACK)
def down(
    data_dir: DataDir = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds to wait; otherwise 120.")] = None,
) -> None:
    """Stop it, and wait until it has stopped."""
    from journeyman.apps.cli import stack

    leave(stack.down(data_dir, timeout))


@app.command(rich_help_panel=STACK)
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what runs, where, and what this machine enforces on sandboxes."""
    from journeyman.apps.cli import stack

    leave(stack.status(data_dir, as_json=as_json))


@app.command(rich_help_panel=PROCESSES)
def api() -> None:
    """Serve REST and event streams."""
    from journeyman.apps.roles.api import run_api
    from journeyman.apps.roles.settings import load_settings

    run_api(load_settings())


@app.command(rich_help_panel=PROCESSES)
def gateway() -> None:
    """Serve the OpenAI-compatible inference gateway."""
    from journeyman.apps.roles.gateway import run_gateway
    from journeyman.apps.roles.settings import load_settings

    run_gateway(load_settings())


@app.command(rich_help_panel=PROCESSES)
def worker(
    roles: Annotated[
        str | None,
        typer.Option("--roles", help="Of orchestration,sandboxes; otherwise JOURNEYMAN_WORKER_ROLES."),
    ] = None,
) -> None:
    """Run a worker of the task queues."""
    from journeyman.apps.roles.settings import load_settings
    from journeyman.apps.roles.worker import run_worker

    settings = load_settings()
    run_worker(settings.model_copy(update={"worker_roles": roles}) if roles else settings)


@app.command("replay-engine", rich_help_panel=PROCESSES)
def replay_engine(
    host: Annotated[str | None, typer.Option("--host")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535)] = None,
) -> None:
    """Serve scripted answers for the bundled demos, in the place of a model."""
    from journeyman.apps.roles.replay_engine import run_replay_engine
    from journeyman.apps.roles.settings import load_settings

    settings = load_settings()
    address = urlsplit(settings.replay_url)
    run_replay_engine(settings, host or address.hostname or "127.0.0.1", port or address.port or 8702)


@app.command(rich_help_panel=PROCESSES)
def vectors() -> None:
    """Serve Qdrant's local storage; a Qdrant server takes its place in production."""
    from journeyman.apps.roles.vectors import run_vectors

    run_vectors()


@app.command(rich_help_panel=PROCESSES)
def migrate() -> None:
    """Bring the database to the newest revision, make the bucket, and stop."""
    from journeyman.apps.roles.migrate import run_migrate

    run_migrate()


@app.command("fork-server", hidden=True)
def fork_server() -> None:
    """Fork the other processes, for the supervisor on its standard input."""
    from journeyman.apps.roles.fork_server import serve

    arguments = serve()
    if arguments is not None:
        app(arguments)


app.add_typer(deploy_app, name="deploy", rich_help_panel=PROCESSES)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"journeyman {version('journeyman')}")
        raise typer.Exit


@app.callback()
def _options(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point of the console script."""
    # Closed by whoever called (`>&-`): what is written goes nowhere.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  it stays open
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115  it stays open
    for stream in (sys.stdout, sys.stderr):
        # A terminal without UTF-8 shows what it can instead of breaking the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except CommandError as error:
        print(error.message, file=sys.stderr)
        sys.exit(int(error.exit_code))
    except JourneymanError as error:
        print(error.message, file=sys.stderr)
        sys.exit(int(Exit.PLATFORM if error.status >= 500 else Exit.USAGE))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _complain_of_full_disk()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _hush()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            _complain_of_full_disk()


def _complain_of_full_disk() -> None:
    _hush()
    print("There is no space left where this command writes; what it said is not complete.", file=sys.stderr)
    sys.exit(int(Exit.PLATFORM))


if __name__ == "__main__":
    main()
