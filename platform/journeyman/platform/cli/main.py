"""The ``journeyman`` command. Signatures only: each command imports what it needs when it runs, so that ``--help`` is quick."""

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from journeyman.platform.cli.deploy import app as deploy_app
from journeyman.platform.cli.exits import CommandError, Exit
from journeyman.platform.cli.memory import app as memory_app
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

_TASKS = "Tasks"
_STACK = "This machine"
_ROLES = "Processes"

Url = Annotated[str | None, typer.Option("--url", help="Server address; otherwise JOURNEYMAN_URL or the local stack.")]
Key = Annotated[
    str | None, typer.Option("--api-key", help="Key jm_…; otherwise JOURNEYMAN_API_KEY or the local stack's admin.key.")
]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id: task_…")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds to watch; then exit code 5.")]
StopOnPause = Annotated[
    bool, typer.Option("--stop-on-pause", help="Stop watching when the task pauses or waits for approval; exit code 5.")
]


def _exit(code: Exit) -> NoReturn:
    raise typer.Exit(int(code))


@app.command(rich_help_panel=_TASKS)
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
    approval_policy: Annotated[
        str | None,
        typer.Option("--approval-policy", help="What a person approves first: never, on_risk, always, JSON or @FILE."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", "-x", help="Pattern of names or paths to leave out; may be repeated."),
    ] = None,
    include_git: Annotated[bool, typer.Option("--include-git", help="Send the .git directory along.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Watch until the end; the exit code tells the outcome.")] = False,
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
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target
    from journeyman.platform.cli.submission import Options

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
        exclude=exclude or (),
        include_git=include_git,
    )
    _exit(
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


@app.command(rich_help_panel=_TASKS)
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
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(
        tasks.watch_task(
            Target(url, api_key), task, as_json=as_json, timeout_s=timeout, stop_on_pause=stop_on_pause, detail=detail
        )
    )


@app.command("list", rich_help_panel=_TASKS)
def list_(
    state: Annotated[str | None, typer.Option("--state", help="Only tasks in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 20,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List tasks, newest first."""
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(tasks.list_tasks(Target(url, api_key), state=state, limit=limit, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def show(task: TaskId, as_json: AsJson = False, url: Url = None, api_key: Key = None) -> None:
    """Show what a task is, what it came to, and the proof."""
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(tasks.show(Target(url, api_key), task, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def cancel(task: TaskId, as_json: AsJson = False, url: Url = None, api_key: Key = None) -> None:
    """Stop a task. Again, or after its end, is no error."""
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(tasks.cancel(Target(url, api_key), task, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def pause(task: TaskId, as_json: AsJson = False, url: Url = None, api_key: Key = None) -> None:
    """Have a task stop before its next step."""
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(tasks.pause(Target(url, api_key), task, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def tell(
    task: TaskId,
    text: Annotated[str, typer.Argument(help="What the agents are to know.")],
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Cancel the call in progress first.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Tell the agents of a running task something."""
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(tasks.send(Target(url, api_key), task, text, interrupt=interrupt, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def resume(
    task: TaskId,
    budget_tokens: Annotated[int | None, typer.Option("--budget-tokens", min=1, help="New limit.")] = None,
    budget_cost: Annotated[float | None, typer.Option("--budget-cost", min=0, help="New limit, US dollars.")] = None,
    budget_steps: Annotated[int | None, typer.Option("--budget-steps", min=1, help="New limit.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Have a paused task go on, with a larger budget if that is what it waits for."""
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    given = {"max_tokens": budget_tokens, "max_cost_usd": budget_cost, "max_steps": budget_steps}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    _exit(tasks.resume(Target(url, api_key), task, limits=limits, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def usage(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Of one task; otherwise of the project.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show what was spent, by model, and of which limits."""
    from journeyman.platform.cli import budgets
    from journeyman.platform.cli.session import Target

    _exit(budgets.usage(Target(url, api_key), task, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def budget(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Of one task; otherwise of the project.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Of another project; needs an admin key.")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", help="New limit; none takes it away.")] = None,
    cost: Annotated[str | None, typer.Option("--cost", help="New limit in US dollars.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="New limit of working time, for example 2h.")] = None,
    steps: Annotated[str | None, typer.Option("--steps", help="New limit of model calls.")] = None,
    period: Annotated[str | None, typer.Option("--period", help="Of a project: day, month or total.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show or change limits; what waits for a limit that is raised goes on."""
    from journeyman.platform.cli import budgets
    from journeyman.platform.cli.session import Target

    changes = budgets.limits(tokens, cost, time, steps, period)
    _exit(budgets.budget(Target(url, api_key), task, project, changes, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def approvals(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Only this task's.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those decided too, not only what waits.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 50,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List what waits for a person."""
    from journeyman.platform.cli import approvals as inbox
    from journeyman.platform.cli.session import Target

    _exit(inbox.inbox(Target(url, api_key), task, everything=everything, limit=limit, as_json=as_json))


ApprovalId = Annotated[
    str, typer.Argument(metavar="ID", help="An approval's id, apr_…; or a task's, for the plan that waits.")
]


@app.command(rich_help_panel=_TASKS)
def approve(
    approval: ApprovalId,
    note: Annotated[str | None, typer.Option("--note", help="Something to tell the agent.")] = None,
    edit: Annotated[
        Path | None,
        typer.Option("--edit", help="JSON file with what is approved instead: a plan, or all arguments of the call."),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Approve a plan or a tool call, as it is or changed. Again is no error."""
    from journeyman.platform.cli import approvals as inbox
    from journeyman.platform.cli.session import Target

    _exit(inbox.decide(Target(url, api_key), approval, "approve", note=note, edit=edit, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def reject(
    approval: ApprovalId,
    note: Annotated[str, typer.Option("--note", help="Why, for the agent: what to do instead.")],
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Reject a plan or a tool call. Again is no error."""
    from journeyman.platform.cli import approvals as inbox
    from journeyman.platform.cli.session import Target

    _exit(inbox.decide(Target(url, api_key), approval, "reject", note=note, edit=None, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def plan(
    task: TaskId,
    edit: Annotated[
        Path | None, typer.Option("--edit", help="JSON file with the plan to put in the place of the one that waits.")
    ] = None,
    revision: Annotated[int | None, typer.Option("--revision", min=1, help="Otherwise the newest.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show a task's plan, or change it while it waits for approval."""
    from journeyman.platform.cli import approvals as inbox
    from journeyman.platform.cli.session import Target

    _exit(inbox.plan(Target(url, api_key), task, edit=edit, revision=revision, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def checkpoints(
    task: TaskId,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 20,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List the points that a task can go back to, or be forked from."""
    from journeyman.platform.cli import branches
    from journeyman.platform.cli.session import Target

    _exit(branches.checkpoints(Target(url, api_key), task, limit=limit, as_json=as_json))


CheckpointId = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's id: ckpt_…")]


@app.command(rich_help_panel=_TASKS)
def rewind(
    task: TaskId,
    checkpoint: CheckpointId,
    preview: Annotated[bool, typer.Option("--preview", help="Only tell what would change.")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", help="What to tell the agents there.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Take a running task back to one of its checkpoints; what was done stays in its log."""
    from journeyman.platform.cli import branches
    from journeyman.platform.cli.session import Target

    _exit(branches.rewind(Target(url, api_key), task, checkpoint, message=message, preview=preview, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def fork(
    task: TaskId,
    checkpoint: CheckpointId,
    instruction: Annotated[
        str | None, typer.Option("--instruction", help="Another instruction; @FILE reads it from a file.")
    ] = None,
    budget_tokens: Annotated[int | None, typer.Option("--budget-tokens", min=1)] = None,
    budget_cost: Annotated[float | None, typer.Option("--budget-cost", min=0, help="US dollars.")] = None,
    budget_time: Annotated[str | None, typer.Option("--budget-time", help="For example 45m or 2h.")] = None,
    budget_steps: Annotated[int | None, typer.Option("--budget-steps", min=1)] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Watch until the end; the exit code tells the outcome.")] = False,
    timeout: Timeout = None,
    stop_on_pause: StopOnPause = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Go on from a checkpoint in a new task, whether the task runs or has ended; prints the new task's id."""
    from journeyman.platform.cli import branches, submission
    from journeyman.platform.cli.session import Target

    budget = submission.limits(tokens=budget_tokens, cost=budget_cost, time=budget_time, steps=budget_steps)
    _exit(
        branches.fork(
            Target(url, api_key),
            task,
            checkpoint,
            instruction=instruction,
            budget=budget,
            wait=wait,
            as_json=as_json,
            watching={"timeout_s": timeout, "stop_on_pause": stop_on_pause},
        )
    )


@app.command(rich_help_panel=_TASKS)
def artifacts(
    task: TaskId,
    download: Annotated[Path | None, typer.Option("--download", "-d", help="Directory to put them all in.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List or download what a task hands over."""
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(tasks.artifacts(Target(url, api_key), task, download=download, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def diff(
    task: TaskId,
    from_: Annotated[str | None, typer.Option("--from", help="Checkpoint; otherwise the beginning.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Checkpoint; otherwise the newest state.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show what a task changed, as a patch for `git apply`."""
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(tasks.diff(Target(url, api_key), task, from_=from_, to=to, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
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
    from journeyman.platform.cli import tasks
    from journeyman.platform.cli.session import Target

    _exit(tasks.logs(Target(url, api_key), task, follow=follow, types=types, as_json=as_json))


@app.command(rich_help_panel=_TASKS)
def demo(
    slug: Annotated[str | None, typer.Argument(help="Which demo; without one they are listed.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running that the demo started.")] = False,
    timeout: Timeout = None,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Run a bundled task from submission to receipts; starts and stops a stack if none runs."""
    from journeyman.platform.cli import demo as demos
    from journeyman.platform.cli.session import Target

    _exit(
        demos.list_demos() if slug is None else demos.run_demo(Target(url, api_key), slug, keep=keep, timeout_s=timeout)
    )


app.add_typer(memory_app, name="memory", rich_help_panel=_TASKS)

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where everything is kept; otherwise JOURNEYMAN_DATA_DIR or ~/.journeyman."),
]


@app.command(rich_help_panel=_STACK)
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
    from journeyman.platform.cli import stack

    _exit(stack.up(data_dir, port, workers, detach=detach))


@app.command(rich_help_panel=_STACK)
def down(
    data_dir: DataDir = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds to wait; otherwise 120.")] = None,
) -> None:
    """Stop it, and wait until it has stopped."""
    from journeyman.platform.cli import stack

    _exit(stack.down(data_dir, timeout))


@app.command(rich_help_panel=_STACK)
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what runs, where, and what this machine enforces on sandboxes."""
    from journeyman.platform.cli import stack

    _exit(stack.status(data_dir, as_json=as_json))


@app.command(rich_help_panel=_ROLES)
def api() -> None:
    """Serve REST and event streams."""
    from journeyman.platform.cli import roles

    roles.api()


@app.command(rich_help_panel=_ROLES)
def gateway() -> None:
    """Serve the OpenAI-compatible inference gateway."""
    from journeyman.platform.cli import roles

    roles.gateway()


@app.command(rich_help_panel=_ROLES)
def worker(
    roles: Annotated[
        str | None,
        typer.Option(
            "--roles", help="Of orchestration,models,sandboxes,deliveries; otherwise JOURNEYMAN_WORKER_ROLES."
        ),
    ] = None,
) -> None:
    """Run a worker of the task queues."""
    from journeyman.platform.cli import roles as processes

    processes.worker(roles)


@app.command("replay-engine", rich_help_panel=_ROLES)
def replay_engine(
    host: Annotated[str | None, typer.Option("--host")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535)] = None,
) -> None:
    """Serve scripted answers for the bundled demos, in the place of a model."""
    from journeyman.platform.cli import roles

    roles.replay_engine(host, port)


@app.command(rich_help_panel=_ROLES)
def vectors() -> None:
    """Serve Qdrant's local storage; a Qdrant server takes its place in production."""
    from journeyman.platform.cli import roles

    roles.vectors()


@app.command(rich_help_panel=_ROLES)
def migrate() -> None:
    """Bring the database to the newest revision, make the bucket, and stop."""
    from journeyman.platform.cli import roles

    roles.migrate()


app.add_typer(deploy_app, name="deploy", rich_help_panel=_ROLES)


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
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _hush()


if __name__ == "__main__":
    main()
