"""``journeyman memory``: what agents know from earlier tasks. Signatures only, as in ``main``."""

from typing import Annotated

import typer

from journeyman.apps.cli.options import AsJson, Key, Limit, Url, leave

app = typer.Typer(
    name="memory",
    help="What agents know from earlier tasks of the project: look at it, trace it, correct it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

MemoryId = Annotated[str, typer.Argument(metavar="ID", help="A memory's id: mem_…")]
Kinds = Annotated[list[str] | None, typer.Option("--kind", help="fact, command or lesson; may be repeated.")]
Kind = Annotated[str | None, typer.Option("--kind", help="fact, command or lesson.")]


@app.command("list")
def list_(
    kind: Kinds = None,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", help="agent, platform or person; may be repeated.")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only what this task wrote.")] = None,
    state: Annotated[str, typer.Option("--state", help="live, superseded, deleted or all.")] = "live",
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List memories, newest first."""
    from journeyman.apps.cli import memories
    from journeyman.apps.cli.session import Target

    code = memories.list_memories(
        Target(url, api_key), kinds=kind, origins=origin, task_id=task, state=state, limit=limit, as_json=as_json
    )
    leave(code)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="What you want to know, in plain words.")],
    kind: Kinds = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100)] = 10,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Find memories by their meaning, as agents do; exit code 3 when the index is down."""
    from journeyman.apps.cli import memories
    from journeyman.apps.cli.session import Target

    leave(memories.search(Target(url, api_key), query, kinds=kind, limit=limit, as_json=as_json))


@app.command()
def show(memory: MemoryId, as_json: AsJson = False, url: Url = None, api_key: Key = None) -> None:
    """Show where a memory comes from and what was done to it."""
    from journeyman.apps.cli import memories
    from journeyman.apps.cli.session import Target

    leave(memories.show(Target(url, api_key), memory, as_json=as_json))


@app.command()
def add(
    text: Annotated[str, typer.Argument(help="One fact that stands on its own; - reads it from standard input.")],
    kind: Annotated[str, typer.Option("--kind", help="fact, command or lesson.")] = "fact",
    supersedes: Annotated[
        str | None, typer.Option("--supersedes", help="The memory that it takes the place of.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Tell the project's agents something; prints its id."""
    from journeyman.apps.cli import memories
    from journeyman.apps.cli.session import Target

    code = memories.add(Target(url, api_key), text, kind=kind, supersedes=supersedes, as_json=as_json)
    leave(code)


@app.command()
def edit(
    memory: MemoryId,
    text: Annotated[str | None, typer.Option("--text", help="The new text; - reads it from standard input.")] = None,
    kind: Kind = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Correct a memory; from then on it outranks what agents said before."""
    from journeyman.apps.cli import memories
    from journeyman.apps.cli.session import Target

    leave(memories.edit(Target(url, api_key), memory, text=text, kind=kind, as_json=as_json))


@app.command()
def delete(
    memory: Annotated[str | None, typer.Argument(metavar="ID", help="A memory's id: mem_…")] = None,
    task: Annotated[str | None, typer.Option("--task", help="All that this task wrote, instead of one.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Take a memory away, at once. Again is no error."""
    from journeyman.apps.cli import memories
    from journeyman.apps.cli.session import Target

    leave(memories.delete(Target(url, api_key), memory, task_id=task, as_json=as_json))
