"""``journeyman deploy``: versions of the workflow code. Signatures only, as in ``main``."""

from pathlib import Path
from typing import Annotated

import typer

from journeyman.apps.cli.options import AsJson, leave

app = typer.Typer(
    name="deploy",
    help="Versions of the workflow code: which are there, which one new tasks get, moving tasks between them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Data directory of a local stack.")]


@app.command()
def status(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show the versions with their workers and running tasks; exit code 1 when tasks stand still."""
    from journeyman.apps.cli import deployments

    leave(deployments.status(data_dir, as_json=as_json))


@app.command()
def current(
    version: Annotated[
        str | None,
        typer.Argument(help="Otherwise that of the code installed here. 'unversioned' for workers without versions."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Let new tasks, and those that move, run on a version whose workers are there."""
    from journeyman.apps.cli import deployments

    leave(deployments.current(data_dir, version))


@app.command()
def move(
    version: Annotated[
        str | None,
        typer.Argument(help="Only the tasks of this version; otherwise all that are not on the current one."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Move running tasks to the current version at once; no step is done twice."""
    from journeyman.apps.cli import deployments

    leave(deployments.move(data_dir, version))
