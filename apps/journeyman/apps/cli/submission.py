"""From the options of ``journeyman submit`` to the body of ``POST /v1/tasks``."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from journeyman.apps.cli import packing
from journeyman.apps.cli.client import Api
from journeyman.apps.cli.inputs import json_object, text_or_stdin
from journeyman.apps.cli.text import counted, parse_duration, size
from journeyman.apps.cli.view import Json
from journeyman.apps.exits import CommandError


@dataclass(frozen=True, slots=True)
class Options:
    """What was given; None and empty mean not given, so that a task file's own values stay."""

    instruction: str | None = None
    file: Path | None = None
    workspace: Path | None = None
    git: str | None = None
    ref: str | None = None
    accept: Sequence[str] = ()
    setup: Sequence[str] = ()
    env: Sequence[str] = ()
    title: str | None = None
    tier: str | None = None
    budget_tokens: int | None = None
    budget_cost: float | None = None
    budget_time: str | None = None
    budget_steps: int | None = None
    approval_policy: str | None = None
    memory: bool = True
    exclude: Sequence[str] = field(default=())
    include_git: bool = False


def build(options: Options) -> Json:
    """The body without its workspace archive. Raises :class:`CommandError` for what cannot be meant."""
    if options.workspace is not None and options.git is not None:
        raise CommandError("--workspace and --git exclude each other: a task has one workspace.")
    if options.ref is not None and options.git is None:
        raise CommandError("--ref names a branch, tag or commit of --git; give --git URL too.")
    body = json_object(options.file, "the body of POST /v1/tasks") if options.file is not None else {}
    if options.instruction is not None:
        body["instruction"] = text_or_stdin(options.instruction, "The instruction")
    if not str(body.get("instruction") or "").strip():
        raise CommandError(
            "There is no instruction. Give it as an argument, as - for standard input, or in --file task.json."
        )
    if options.title is not None:
        body["title"] = options.title
    if options.tier is not None:
        body["model_tier"] = options.tier
    if options.approval_policy is not None:
        body["approval_policy"] = _policy(options.approval_policy)
    if not options.memory:
        body["memory"] = {"read": False, "write": False}
    if options.accept:
        body["acceptance"] = list(options.accept)
    if options.git is not None:
        body["workspace"] = {"source": "git", "url": options.git} | ({"ref": options.ref} if options.ref else {})
    environment = dict(body.get("environment") or {})
    if options.setup:
        environment["setup"] = list(options.setup)
    if options.env:
        environment["env"] = {**(environment.get("env") or {}), **dict(_assignment(entry) for entry in options.env)}
    if environment:
        body["environment"] = environment
    budget = dict(body.get("budget") or {}) | _budget(options)
    if budget:
        body["budget"] = budget
    return body


def _policy(given: str) -> object:
    """A word as it is; a JSON object, or the one in the file after ``@``."""
    if given.startswith("@"):
        return json_object(Path(given[1:]), "an approval policy")
    if not given.lstrip().startswith("{"):
        return given
    try:
        return json.loads(given)
    except ValueError as error:
        raise CommandError(f"--approval-policy is neither a word nor valid JSON: {error}.") from None


def _assignment(entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals or not name:
        raise CommandError(f"--env takes NAME=VALUE, not {entry!r}.")
    return name, value


def _budget(options: Options) -> Json:
    return limits(
        tokens=options.budget_tokens,
        cost=options.budget_cost,
        time=options.budget_time,
        steps=options.budget_steps,
    )


def limits(*, tokens: int | None, cost: float | None, time: str | None, steps: int | None) -> Json:
    """The ``budget`` of a body from the options that name limits."""
    found: Json = {"max_tokens": tokens, "max_cost_usd": cost, "max_steps": steps}
    if time is not None:
        try:
            found["max_wall_s"] = int(parse_duration(time))
        except ValueError as error:
            raise CommandError(f"--budget-time: {error}.") from None
    return {name: limit for name, limit in found.items() if limit is not None}


def send_workspace(api: Api, workspace: Path, *, exclude: Sequence[str] = (), include_git: bool = False) -> Json:
    """Upload a directory or an archive and return the ``workspace`` of a task's body. Says what it does on stderr."""
    if not workspace.exists():
        raise CommandError(f"{workspace} does not exist.")
    if workspace.is_dir():
        packed = packing.pack(workspace, exclude=exclude, include_git=include_git)
    else:
        packed = packing.open_archive(workspace)
    with packed.file:
        for note in packed.notes:
            print(f"# {note}", file=sys.stderr)
        uploaded = api.upload(packed.file, packed.length)
    files = uploaded.get("files", packed.files)
    print(f"# uploaded {counted(int(files), 'file')}, {size(packed.length)} packed", file=sys.stderr)
    return {"source": "archive", "upload_id": uploaded["id"]}
