"""The commands on tasks: each prints for people or programs and returns its exit code."""

import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any

from rich.text import Text

from journeyman.apps.cli import render, submission, watch
from journeyman.apps.cli.amounts import counted_tokens
from journeyman.apps.cli.client import Api
from journeyman.apps.cli.session import Target, connected, engine_is_replay, print_json, print_table, suggest, warn
from journeyman.apps.cli.steps.fold import fold_event
from journeyman.apps.cli.suggestions import Suggestion, command, laid_out, terminal_width
from journeyman.apps.cli.text import clock, counted, duration, lines_of, moment, money, one_line, size, visible
from journeyman.apps.cli.view import REPLAY_BANNER, Json, TaskView
from journeyman.apps.cli.waiting import for_pause
from journeyman.apps.exits import CommandError, Exit, exit_for


def submit(
    target: Target,
    options: submission.Options,
    *,
    wait: bool,
    as_json: bool,
    idempotency_key: str | None,
    timeout_s: float | None,
    stop_on_pause: bool,
) -> Exit:
    body = submission.build(options)
    with connected(target) as api:
        if options.workspace is not None:
            body["workspace"] = submission.send_workspace(
                api, options.workspace, exclude=options.exclude, include_git=options.include_git
            )
        task = api.submit(body, idempotency_key)
        warn(task)
        if not wait:
            if as_json:
                print_json(task)
            else:
                print(task["id"])
                suggest(Suggestion("watch it", f"{command()} watch {task['id']}"))
            return Exit.OK
        return watched(api, task, as_json=as_json, timeout_s=timeout_s, stop_on_pause=stop_on_pause)


def watch_task(
    target: Target, task_id: str, *, as_json: bool, timeout_s: float | None, stop_on_pause: bool, detail: int | None
) -> Exit:
    with connected(target) as api:
        task = api.task(task_id)
        return watched(api, task, as_json=as_json, timeout_s=timeout_s, stop_on_pause=stop_on_pause, detail=detail)


def watched(
    api: Api, task: Json, *, as_json: bool, timeout_s: float | None, stop_on_pause: bool, detail: int | None = None
) -> Exit:
    style = watch.chosen_style(as_json=as_json)
    replay = engine_is_replay(api)
    view, code = watch.follow(
        api, task, style=style, replay=replay, timeout_s=timeout_s, stop_on_pause=stop_on_pause, detail=detail
    )
    if style != "json" and view.ended:
        print_outcome(api, view)
    return code


def print_outcome(api: Api, view: TaskView) -> None:
    """How a task ended: receipts, artifacts, and where to look next."""
    out = render.console()
    receipts = newest(api.of_task(view.task_id, "receipts")["data"])
    artifacts = [
        entry for entry in api.of_task(view.task_id, "artifacts")["data"] if entry.get("kind") != "tool_output"
    ]
    facts = [duration(view.elapsed(time.time())), counted_tokens(view.tokens)]
    if view.cost_usd is not None:
        facts.append(money(view.cost_usd))
    out.print()
    out.print(Text(f"{render.state_words(view.state, view.verified)}  in {', '.join(facts)}", style="bold"))
    if view.replay:
        out.print(Text(f"▷ {REPLAY_BANNER}", style="yellow"))
    if view.failure:
        out.print(Text("\n".join(lines_of(str(view.failure.get("message", "")))), style="red"))
    if view.state == "succeeded" and not view.verified:
        out.print(Text("Nothing proves the result: the task had no acceptance command (--accept).", style="yellow"))
    if receipts:
        out.print(render.receipts_table(receipts))
    if artifacts:
        out.print(render.artifacts_table(artifacts))
    own = command()
    closer = (
        Suggestion("what changed", f"{own} diff {view.task_id}"),
        Suggestion("every event", f"{own} logs {view.task_id}"),
        Suggestion("all of it", f"{own} show {view.task_id}"),
    )
    print("\n".join(["Look closer", *laid_out(closer, terminal_width())]))


def newest(receipts: list[Json]) -> list[Json]:
    """The receipts of the last verification: earlier ones failed and led to more work."""
    last = max((int(receipt.get("attempt") or 0) for receipt in receipts), default=0)
    return [receipt for receipt in receipts if int(receipt.get("attempt") or 0) == last]


def show(target: Target, task_id: str, *, as_json: bool) -> Exit:
    with connected(target) as api:
        task = api.task(task_id)
        usage = api.of_task(task_id, "usage")
        receipts = api.of_task(task_id, "receipts")["data"]
        artifacts = api.of_task(task_id, "artifacts")["data"]
        if as_json:
            print_json({**task, "usage": usage, "receipts": receipts, "artifacts": artifacts})
            return Exit.OK
        view = TaskView.of(task, replay=engine_is_replay(api))
        for event in api.events(task_id):
            fold_event(view, event)
        watch.take_usage(view, usage)
        view.state, view.verified = str(task["state"]), task.get("verified")
        view.paused, view.pause = task.get("paused_reason"), task.get("paused_detail") or {}
        view.sandbox_wait = (task.get("sandbox_wait") or {}).get("reason")
        _print_task(task, view, newest(receipts), artifacts)
    return Exit.OK


def _print_task(task: Json, view: TaskView, receipts: list[Json], artifacts: list[Json]) -> None:
    out = render.console()
    out.print(Text(view.title or view.task_id, style="bold"))
    out.print(render.header(view))
    if view.replay:
        out.print(Text(f"▷ {REPLAY_BANNER}", style="yellow"))
    if view.pause.get("detail"):
        out.print(Text("\n".join(lines_of(str(view.pause["detail"]))), style="yellow"))
    for line in render.waiting_lines(view, out.width if out.is_terminal else None):
        out.print(line, soft_wrap=True)
    for warning in task.get("warnings") or ():
        out.print(Text(f"! {one_line(str(warning.get('message')), 1000)}", style="yellow"))
    failure = task.get("failure")
    if isinstance(failure, dict):
        out.print(Text(f"{failure.get('code')}: " + "\n".join(lines_of(str(failure.get("message", "")))), style="red"))
    origin = task.get("forked_from")
    if isinstance(origin, dict):
        spent = task.get("inherited") or {}
        inherited = f"{counted_tokens(int(spent.get('tokens') or 0))}, {money(spent.get('cost_usd') or '0')}"
        out.print(Text(f"fork of {origin.get('task_id')} at {origin.get('checkpoint_id')}; inherited: {inherited}"))
    if task.get("epoch"):
        out.print(Text(f"rewound {counted(int(task['epoch']), 'time')}"))
    if task.get("summary"):
        out.print(Text("\n".join(lines_of(str(task["summary"])))))
    out.print()
    out.print(Text("Instruction", style="bold"))
    out.print(Text("\n".join(f"  {line}" for line in lines_of(str(task.get("instruction", "")), 20))))
    if view.subtasks:
        out.print()
        out.print(Text(f"Plan, revision {view.plan_revision}", style="bold"))
        out.print(render.plan_tree(view.subtasks.values()))
    if receipts:
        out.print()
        out.print(render.receipts_table(receipts))
    shown = [entry for entry in artifacts if entry.get("kind") != "tool_output"]
    if shown:
        out.print()
        out.print(render.artifacts_table(shown))


def list_tasks(target: Target, *, state: str | None, limit: int, as_json: bool) -> Exit:
    with connected(target) as api:
        tasks = list(api.pages("/v1/tasks", limit=limit, state=state))
        if as_json:
            print_json(tasks)
            return Exit.OK
        if not tasks:
            print("No tasks yet." if state is None else "No task is in this state.", file=sys.stderr)
            own = command()
            suggest(Suggestion("submit one", f'{own} submit "…" --workspace DIR'), Suggestion("or try", f"{own} demo"))
            return Exit.OK
        now = time.time()
        rows = []
        for task in tasks:
            words = render.state_words(task["state"], task.get("verified"))
            if task.get("paused_reason"):
                words += f" (paused: {task['paused_reason'].replace('_', ' ')})"
            if task.get("waiting_for"):
                words += " (waits for approval)"
            begun = moment(task.get("created_at"))
            age = duration(max(0.0, now - begun.timestamp())) if begun else "-"
            rows.append((str(task["id"]), words, age, one_line(str(task.get("title") or ""), 60)))
        print_table(("id", "state", "age", "title"), rows)
        if any(task.get("paused_reason") or task.get("waiting_for") for task in tasks):
            suggest(Suggestion("what a task waits for", f"{command()} show ID"))
    return Exit.OK


def cancel(target: Target, task_id: str, *, as_json: bool) -> Exit:
    with connected(target) as api:
        task = api.cancel(task_id)
        if as_json:
            print_json(task)
        else:
            state = str(task.get("state", ""))
            ended = exit_for(state) is not Exit.UNFINISHED
            print(f"{task_id} is {state}." if ended else f"{task_id} is being cancelled (now {state}).")
    return Exit.OK


def pause(target: Target, task_id: str, *, as_json: bool) -> Exit:
    with connected(target) as api:
        task = api.pause(task_id)
        if as_json:
            print_json(task)
        else:
            print(f"{task_id} pauses before its next step ({task.get('paused_reason')}).")
            suggest(*for_pause(task_id, str(task.get("paused_reason")), task.get("paused_detail") or {}).how)
    return Exit.OK


def send(target: Target, task_id: str, text: str, *, interrupt: bool, as_json: bool) -> Exit:
    with connected(target) as api:
        message = api.tell(task_id, text, "interrupt" if interrupt else "queue")
        if as_json:
            print_json(message)
        else:
            when = "now: the call in progress is cancelled" if interrupt else "at their next step"
            print(f"The agents read message {message['number']} {when}.")
    return Exit.OK


def resume(target: Target, task_id: str, *, limits: Json, as_json: bool) -> Exit:
    with connected(target) as api:
        before = api.task(task_id)
        if limits:
            warn(api.change_budget(task_id, limits))
        task = api.resume(task_id)
        if as_json:
            print_json(task)
            return Exit.OK
        print(f"{task_id} goes on ({task.get('state')}).")
        detail = before.get("paused_detail") or {}
        moved = before.get("budget") != task.get("budget") and detail.get("level") != "project"
        if before.get("paused_reason") == "budget" and not moved:
            print("It was paused at a limit: without a larger one it pauses again at its next step.", file=sys.stderr)
            suggest(*for_pause(task_id, "budget", detail).how)
    return Exit.OK


def artifacts(target: Target, task_id: str, *, download: Path | None, as_json: bool) -> Exit:
    with connected(target) as api:
        found = api.of_task(task_id, "artifacts")["data"]
        if download is None:
            if as_json:
                print_json(found)
            else:
                rows = [
                    (str(entry["id"]), str(entry["kind"]), one_line(str(entry["name"]), 200), size(int(entry["size"])))
                    for entry in found
                ]
                print_table(("id", "kind", "name", "size"), rows)
            return Exit.OK
        for entry in found:
            path = place_for(download, str(entry["name"]))
            count = api.download(str(entry["id"]), path)
            print(f"{visible(str(path))}  {size(count)}")
    return Exit.OK


def place_for(directory: Path, name: str) -> Path:
    """A new file's path under the directory for an artifact of that name, whatever the name tries.

    Its parent directories are made. A name that is taken gets a number. Raises :class:`CommandError` when a link in the
    directory leads out of it.
    """
    parts = [part for part in PurePosixPath(name.replace("\x00", "")).parts if part not in {"/", "//", ".", ".."}]
    parts = [part[:200] for part in parts] or ["artifact"]
    directory.mkdir(parents=True, exist_ok=True)
    root = directory.resolve()
    target = root.joinpath(*parts)
    if not target.parent.resolve().is_relative_to(root):
        raise CommandError(
            f"{visible(str(target.parent))} leads out of {directory}; remove that link or choose another directory."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    free, count = target, 1
    while free.exists() or free.is_symlink():
        count += 1
        free = target.with_name(f"{target.stem}-{count}{target.suffix}")
    return free


def diff(target: Target, task_id: str, *, from_: str | None, to: str | None, as_json: bool) -> Exit:
    with connected(target) as api:
        found = api.of_task(task_id, "diff", **{"from": from_, "to": to})
        if as_json:
            print_json(found)
            return Exit.OK
        print_diff(found)
        if not str(found["patch"]).strip() and from_ is None and to is None:
            print(
                "What a subtask does is in the task's workspace once it is approved. Before that, look at its checkpoints.",
                file=sys.stderr,
            )
            own = command()
            suggest(
                Suggestion("list them", f"{own} checkpoints {task_id}"),
                Suggestion("then", f"{own} diff {task_id} --to CHECKPOINT"),
            )
    return Exit.OK


def print_diff(found: Any) -> None:
    patch = str(found["patch"])
    if not patch.strip():
        print("Nothing has changed.", file=sys.stderr)
    elif render.is_terminal():
        render.console().print(render.diff_text(patch), soft_wrap=True)
    else:
        # In a pipe the patch as it is: it may be on its way to `git apply`.
        print(patch, end="" if patch.endswith("\n") else "\n")
    if found.get("truncated"):
        print(
            "# The diff was too long and is cut; the API gives the whole one for `Accept: text/x-diff`.",
            file=sys.stderr,
        )


def logs(target: Target, task_id: str, *, follow: bool, types: str | None, as_json: bool) -> Exit:
    """Every event as a line, with all it says."""
    import json

    wanted = {entry.strip() for entry in types.split(",")} if types else None
    with connected(target) as api:
        view = TaskView.of(api.task(task_id))
        try:
            for event in api.follow(task_id) if follow else api.events(task_id):
                if event is None:
                    continue
                line = fold_event(view, event)
                if wanted is not None and event["type"] not in wanted:
                    continue
                if as_json:
                    print(json.dumps(event, ensure_ascii=True, separators=(",", ":")), flush=True)
                    continue
                where = f" [{one_line(str(event['subtask_id']), 40)}]" if event.get("subtask_id") else ""
                text = line.text if line else ""
                role = line.role if line else "platform"
                print(
                    f"{event['seq']:>5}  {clock(event.get('time'))}  {event['type']:<26} {role}{where}  {text}".rstrip()
                )
                for extra in (*line.detail, *line.advice()) if line else ():
                    print(f"       | {extra}")
                sys.stdout.flush()
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
    return Exit.OK
