"""Commands that steer tasks: control, messages, limits, approvals, checkpoints.

Signatures only: each command imports what it needs when it runs, so that ``--help`` is quick.
"""

from pathlib import Path
from typing import Annotated

import typer

from journeyman.apps.cli.options import TASKS, AsJson, Key, Limit, StopOnPause, TaskId, Timeout, Url, Wait, leave

app = typer.Typer()


@app.command(rich_help_panel=TASKS)
def cancel(task: TaskId, as_json: AsJson = False, url: Url = None, api_key: Key = None) -> None:
    """Stop a task. Again, or after its end, is no error."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(tasks.cancel(Target(url, api_key), task, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def pause(task: TaskId, as_json: AsJson = False, url: Url = None, api_key: Key = None) -> None:
    """Have a task stop before its next step."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(tasks.pause(Target(url, api_key), task, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def resume(
    task: TaskId,
    budget_tokens: Annotated[int | None, typer.Option("--budget-tokens", min=1, help="New limit.")] = None,
    budget_cost: Annotated[float | None, typer.Option("--budget-cost", min=0, help="New limit, US dollars.")] = None,
    budget_time: Annotated[str | None, typer.Option("--budget-time", help="New limit, for example 45m or 2h.")] = None,
    budget_steps: Annotated[int | None, typer.Option("--budget-steps", min=1, help="New limit.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Have a paused task go on, with a larger budget if that is what it waits for."""
    from journeyman.apps.cli import submission, tasks
    from journeyman.apps.cli.session import Target

    limits = submission.limits(tokens=budget_tokens, cost=budget_cost, time=budget_time, steps=budget_steps)
    leave(tasks.resume(Target(url, api_key), task, limits=limits, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def tell(
    task: TaskId,
    text: Annotated[str, typer.Argument(help="What the agents are to know.")],
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Cancel the call in progress first.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Tell the agents of a running task something."""
    from journeyman.apps.cli import tasks
    from journeyman.apps.cli.session import Target

    leave(tasks.send(Target(url, api_key), task, text, interrupt=interrupt, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def budget(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Of one task; otherwise of the project.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="Of another project; needs the operator's key.")
    ] = None,
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
    from journeyman.apps.cli import budgets
    from journeyman.apps.cli.session import Target

    changes = budgets.limits(tokens, cost, time, steps, period)
    leave(budgets.budget(Target(url, api_key), task, project, changes, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def approvals(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Only this task's.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those decided too, not only what waits.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List what waits for a person."""
    from journeyman.apps.cli import approvals as inbox
    from journeyman.apps.cli.session import Target

    leave(inbox.inbox(Target(url, api_key), task, everything=everything, limit=limit, as_json=as_json))


ApprovalId = Annotated[
    str, typer.Argument(metavar="ID", help="An approval's id, apr_…; or a task's, for the plan that waits.")
]


@app.command(rich_help_panel=TASKS)
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
    from journeyman.apps.cli import approvals as inbox
    from journeyman.apps.cli.session import Target

    leave(inbox.decide(Target(url, api_key), approval, "approve", note=note, edit=edit, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def reject(
    approval: ApprovalId,
    note: Annotated[str, typer.Option("--note", help="Why, for the agent: what to do instead.")],
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Reject a plan or a tool call. Again is no error."""
    from journeyman.apps.cli import approvals as inbox
    from journeyman.apps.cli.session import Target

    leave(inbox.decide(Target(url, api_key), approval, "reject", note=note, edit=None, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def plan(
    task: TaskId,
    edit: Annotated[
        Path | None, typer.Option("--edit", help="JSON file with the plan to put in the place of the one that waits.")
    ] = None,
    revision: Annotated[int | None, typer.Option("--revision", min=1, help="Otherwise the one in force.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Show a task's plan, or change it while it waits for approval."""
    from journeyman.apps.cli import approvals as inbox
    from journeyman.apps.cli.session import Target

    leave(inbox.plan(Target(url, api_key), task, edit=edit, revision=revision, as_json=as_json))


@app.command(rich_help_panel=TASKS)
def checkpoints(
    task: TaskId,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """List the points that a task can go back to, or be forked from."""
    from journeyman.apps.cli import branches
    from journeyman.apps.cli.session import Target

    leave(branches.checkpoints(Target(url, api_key), task, limit=limit, as_json=as_json))


CheckpointId = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's id: ckpt_…")]


@app.command(rich_help_panel=TASKS)
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
    from journeyman.apps.cli import branches
    from journeyman.apps.cli.session import Target

    leave(branches.rewind(Target(url, api_key), task, checkpoint, message=message, preview=preview, as_json=as_json))


@app.command(rich_help_panel=TASKS)
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
    wait: Wait = False,
    timeout: Timeout = None,
    stop_on_pause: StopOnPause = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Go on from a checkpoint in a new task, whether the task runs or has ended; prints the new task's id."""
    from journeyman.apps.cli import branches, submission
    from journeyman.apps.cli.session import Target

    budget = submission.limits(tokens=budget_tokens, cost=budget_cost, time=budget_time, steps=budget_steps)
    leave(
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
