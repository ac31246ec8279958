"""Commands that submit tasks, follow them and take their results.

Signatures only: each command imports what it needs when it runs, so that ``--help`` is quick.
"""

from pathlib import Path
from typing import Annotated

import typer

from journeyman.apps.cli.options import TASKS, AsJson, Key, Limit, StopOnPause, TaskId, Timeout, Url, Wait, leave

app = typer.Typer()


@app.command(rich_help_panel=TASKS)
def submit(
    instruction: Annotated[
        str | None, typer.Argument(help="What is to be done; - reads it from standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="JSON body of POST /v1/tasks; options override it.")
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", "-w", help="Directory, .tar.gz or .tar to work on.")
    ] = None,
    git: Annotated[str | None, typer.Option("--git", help="Repository to work on, instead of --workspace.")] = None,
    ref: Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit of --git.")] = None,
    accept: Annotated[
        list[str] | None, typer.Option("--accept", "-a", help="Command that must pass in the end; may be repeated.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option("--setup", help="Command that prepares the workspace; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=VALUE inside the sandbox; may be repeated.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title")] = None,
    tier: Annotated[str | None, typer.Option("--tier", help="Model tier: standard or fast.")] = None,
    budget_tokens: Annotated[int | None, typer.Option("--budget-tokens", min=1)] = None,
    budget_cost: Annotated[float | None, typer.Option("--budget-cost", min=0, help="US dollars.")] = None,
    budget_time: Annotated[str | None, typer.Option("--budget-time", help="For example 45m or 2h.")] = None,
    budget_steps: Annotated[int | None, typer.Option("--budget-steps", min=1)] = None,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Whether the task recalls and keeps what the project knows.")
    ] = True,
    approval_policy: Annotated[
        str | None,
        typer.Option("--approval-policy", help="What a person approves first: never, on_risk, always, JSON or @FILE."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", "-x", help="Pattern of names or paths to leave out; may be repeated."),
    ] = None,
    include_git: Annotated[bool, typer.Option("--include-git", help="Send the .git directory along.")] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    stop_on_pause: StopOnPause = False,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="The same key again finds the same task.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Submit a task; prints its id."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target
    from journeyman.apps.cli.submission import Options

    options = Options(
        instruction=instruction,
        file=file,
        workspace=workspace,
        git=git,
        ref=ref,
        accept=accept or (),
        setup=setup or (),
        env=env or (),
        title=title,
        tier=tier,
        budget_tokens=budget_tokens,
        budget_cost=budget_cost,
        budget_time=budget_time,
        budget_steps=budget_steps,
        approval_policy=approval_policy,
        memory=memory,
        exclude=exclude or (),
        include_git=include_git,
    )
    leave(
        tasks.submit(
            Target(url, api_key),
            options,
            wait=wait,
            as_json=as_json,
            idempotency_key=idempotency_key,
            timeout_s=timeout,
            stop_on_pause=stop_on_pause,
        )
    )


@app.command(rich_help_panel=TASKS)
def watch(
    task: TaskId,
    as_json: Annotated[bool, typer.Option("--json", help="One event a line.")] = False,
    detail: Annotated[
        int | None, typer.Option("--detail", min=0, help="Lines of output to show for each step.")
    ] = None,
    timeout: Timeout = None,
    stop_on_pause: StopOnPause = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Follow a task to its end, from its first event on; the exit code tells the outcome."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(
        tasks.watch_task(
            Target(url, api_key), task, as_json=as_json, timeout_s=timeout, stop_on_pause=stop_on_pause, detail=detail
        )
    )


@app.command("list", rich_help_panel=TASKS)
def list_(
    state: Annotated[str | None, typer.Option("--state", help="Only tasks in this state.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List tasks, newest first."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(tasks.list_tasks(Target(url, api_key), state=state, limit=limit, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def show(task: TaskId, as_json: AsJson = False, url: Url = None, api_key: Key = None) -> None:
    """Show what a task is, what it came to, and the proof."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(tasks.show(Target(url, api_key), task, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def usage(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Of one task; otherwise of the project.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show what was spent, by model, and of which limits."""
    from journeyman.apps.cli import budgets
    from journeyman.apps.cli.session import Target

    leave(budgets.usage(Target(url, api_key), task, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def artifacts(
    task: TaskId,
    download: Annotated[Path | None, typer.Option("--download", "-d", help="Directory to put them all in.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List or download what a task hands over."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(tasks.artifacts(Target(url, api_key), task, download=download, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def diff(
    task: TaskId,
    from_: Annotated[str | None, typer.Option("--from", help="Checkpoint; otherwise the beginning.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Checkpoint; otherwise the newest state.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show what a task changed, as a patch for `git apply`."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(tasks.diff(Target(url, api_key), task, from_=from_, to=to, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def logs(
    task: TaskId,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the task ends.")] = False,
    types: Annotated[
        str | None, typer.Option("--types", help="Only these, separated by commas: agent.tool_call,…")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One event a line.")] = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Print every event of a task, with all it says."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(tasks.logs(Target(url, api_key), task, follow=follow, types=types, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def demo(
    slug: Annotated[str | None, typer.Argument(help="Which demo; without one they are listed.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running that the demo started.")] = False,
    timeout: Timeout = None,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Run a bundled task from submission to receipts; starts and stops a stack if none runs."""
    from journeyman.apps.cli import demo as demos
    from journeyman.apps.cli.session import Target

    leave(
        demos.list_demos() if slug is None else demos.run_demo(Target(url, api_key), slug, keep=keep, timeout_s=timeout)
    )
