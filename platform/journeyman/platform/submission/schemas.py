"""Tasks as the API takes them and shows them."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from journeyman.platform.approvals.schemas import PolicyInput
from journeyman.platform.budgets.warnings import BudgetWarning
from journeyman.platform.http.fields import (
    Input,
    Line,
    PlainText,
    at_most_bytes,
    not_blank,
)
from journeyman.platform.http.pagination import DEFAULT_LIMIT, PageLimit
from journeyman.platform.kit.database import Json
from journeyman.platform.tasks.contract import TERMINAL, TaskState
from journeyman.platform.tasks.models import Task

MAX_INSTRUCTION: Final = 1024 * 1024
MAX_COMMAND: Final = 8 * 1024

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]*")


def _git_url(value: str) -> str:
    """Only plain http(s) addresses; what git would also take (``ext::``, ``file:``, ssh, options) runs or reads things."""
    if any(character.isspace() or not character.isprintable() for character in value):
        raise ValueError("contains white space or control characters")
    scheme, separator, _ = value.partition("://")
    if not separator or scheme.lower() not in {"https", "http"}:
        raise ValueError("must begin with https://; other ways to reach a repository are refused")
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is not a valid URL ({error})") from None
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise ValueError("must not contain a user name or password: it would be stored and shown with the task")
    if not parts.hostname:
        raise ValueError("names no host")
    if parts.fragment:
        raise ValueError("must not contain a fragment (#…); name a branch, tag or commit in ref")
    return value


def _git_ref(value: str) -> str:
    if _REF.fullmatch(value) is None or ".." in value or value.endswith((".lock", "/", ".")) or "//" in value:
        raise ValueError("is not the name of a branch, a tag or a commit")
    return value


def _environment_name(value: str) -> str:
    if _ENV_NAME.fullmatch(value) is None:
        raise ValueError("is not a variable name (letters, digits and _, not beginning with a digit)")
    return value


Command = Annotated[PlainText, AfterValidator(not_blank), at_most_bytes(MAX_COMMAND)]
"""A shell command: 1 byte to 8 KiB."""

EnvironmentName = Annotated[PlainText, Field(max_length=128), AfterValidator(_environment_name)]


class NoWorkspace(Input):
    """Begin in an empty folder."""

    source: Literal["none"]


class ArchiveWorkspace(Input):
    """Begin with an uploaded archive."""

    source: Literal["archive"]
    upload_id: Annotated[Line, Field(max_length=80)]


class GitWorkspace(Input):
    """Begin with a clone."""

    source: Literal["git"]
    url: Annotated[PlainText, Field(max_length=2048), AfterValidator(_git_url)]
    ref: Annotated[PlainText, Field(max_length=255), AfterValidator(_git_ref)] | None = None


Workspace = Annotated[NoWorkspace | ArchiveWorkspace | GitWorkspace, Field(discriminator="source")]


def _nothing_yet(what: str) -> AfterValidator:
    def check(value: list[Any]) -> list[Any]:
        if value:
            raise ValueError(f"{what}; leave the list empty")
        return value

    return AfterValidator(check)


class Network(Input):
    """What a sandbox may reach."""

    egress: Annotated[
        list[PlainText], _nothing_yet("sandboxes of this version have no network at all, so no host can be allowed")
    ] = []


class TaskResources(Input):
    """Of each sandbox of the task; what is left out is the platform's default. The installation's settings bound each."""

    memory_mb: Annotated[int, Field(ge=64, le=2**20)] | None = None
    cpus: Annotated[float, Field(ge=0.1, le=1024, allow_inf_nan=False)] | None = None
    pids: Annotated[int, Field(ge=16, le=2**22)] | None = None
    disk_mb: Annotated[int, Field(ge=16, le=2**20)] | None = None


class Environment(Input):
    """The machine that the agents work on."""

    toolset: Literal["python", "system"] = "python"
    setup: Annotated[list[Command], Field(max_length=50)] = []
    """Run once, before the plan; their effect on the workspace is kept."""
    checks: Annotated[list[Command], Field(max_length=50)] = []
    """Must pass after setup; a task whose environment is wrong fails before a token is spent."""
    env: Annotated[dict[EnvironmentName, Annotated[PlainText, at_most_bytes(32 * 1024)]], Field(max_length=100)] = {}
    secrets: Annotated[list[EnvironmentName], Field(max_length=100)] = []
    network: Network = Network()
    resources: TaskResources = TaskResources()


ModelName = Annotated[Line, Field(min_length=1, max_length=200)]


class RoleModels(Input):
    """Models by role, instead of the tier's."""

    planner: ModelName | None = None
    coder: ModelName | None = None
    reviewer: ModelName | None = None


class Budget(Input):
    """Limits at which the task pauses; what is left out is unlimited."""

    max_tokens: Annotated[int, Field(gt=0, le=10**15)] | None = None
    max_cost_usd: Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)] | None = None
    max_wall_s: Annotated[int, Field(gt=0, le=10**9)] | None = None
    max_steps: Annotated[int, Field(gt=0, le=10**9)] | None = None


class MemoryUse(Input):
    """What the task may do with the project's memory. A project that switches it off outranks the task."""

    read: bool = True
    """Recall what earlier tasks left."""
    write: bool = True
    """Keep what is learnt for later tasks."""


class SubmitTask(Input):
    """A job for the agents."""

    title: Annotated[Line, AfterValidator(not_blank), Field(max_length=200)] | None = None
    """Default: the beginning of the instruction."""
    instruction: Annotated[PlainText, AfterValidator(not_blank), at_most_bytes(MAX_INSTRUCTION)]
    """What is to be done; at most 1 MiB of UTF-8."""
    workspace: Workspace = NoWorkspace(source="none")
    environment: Environment = Environment()
    acceptance: Annotated[list[Command], Field(max_length=20)] = []
    """Commands that the platform runs itself in a clean sandbox; the task succeeds when all exit with 0."""
    agent_profile: Literal["default"] = "default"
    model_tier: Literal["standard", "fast"] = "standard"
    models: RoleModels = RoleModels()
    budget: Budget = Budget()
    approval_policy: PolicyInput = "never"
    memory: MemoryUse = MemoryUse()
    webhooks: Annotated[list[Any], _nothing_yet("this version sends no webhooks")] = []
    metadata: Annotated[
        dict[Annotated[Line, Field(min_length=1, max_length=64)], Annotated[PlainText, Field(max_length=512)]],
        Field(max_length=32),
    ] = {}


class TaskSummary(BaseModel):
    """A task in a list: without what may be long."""

    id: str
    project_id: str
    title: str
    state: TaskState
    paused_reason: str | None
    paused_detail: Json | None
    """What the pause is for: of a budget ``{level, limit, spent, of, period, detail}``."""
    waiting_for: list[str]
    sandbox_wait: Json | None
    """A sandbox that waits for memory of the machine: ``{purpose, reason, needed_bytes, free_bytes, capacity_bytes}``."""
    verified: bool | None
    failure: Json | None
    summary: str | None
    model_tier: str
    metadata: dict[str, str]
    plan_revision: int
    last_seq: int
    cancel_requested_at: datetime | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, task: Task) -> "TaskSummary":
        return cls(**_common(task))


class TaskView(TaskSummary):
    """A task, whole."""

    instruction: str
    workspace: Json
    environment: Json
    acceptance: list[str]
    agent_profile: str
    models: Json
    budget: Json
    approval_policy: Json
    memory: Json
    """``{read, write}``: what the task may do with the project's memory."""
    webhooks: list[Json]
    initial_snapshot: str | None
    head_snapshot: str | None
    epoch: int
    """How often the task was rewound."""
    forked_from: Json | None
    """``{task_id, checkpoint_id}`` of a task that began as a fork."""
    inherited: Json
    """What was spent before a fork, and counts against its limits: ``{tokens, cost_usd, steps, wall_s}``; empty otherwise."""
    warnings: list[BudgetWarning]
    """Limits that cannot be kept; empty when all can, and once the task has ended."""

    @classmethod
    def whole(cls, task: Task, warnings: Sequence[BudgetWarning]) -> "TaskView":
        return cls(
            **_common(task),
            instruction=task.instruction,
            workspace=task.workspace,
            environment=task.environment,
            acceptance=task.acceptance,
            agent_profile=task.agent_profile,
            models=task.models,
            budget=task.budget,
            approval_policy=task.approval_policy,
            memory={"read": True, "write": True} | task.memory,
            webhooks=[],
            initial_snapshot=task.initial_snapshot,
            head_snapshot=task.head_snapshot,
            epoch=task.epoch,
            forked_from=task.forked_from,
            inherited=task.inherited,
            warnings=list(warnings),
        )


class TaskPage(BaseModel):
    """Newest first. ``next_cursor`` is null on the last page."""

    data: list[TaskSummary]
    next_cursor: str | None


def _common(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "project_id": task.project_id,
        "title": task.title,
        "state": task.state,
        "paused_reason": task.paused_reason,
        "paused_detail": task.paused_detail,
        "waiting_for": task.waiting_for,
        "sandbox_wait": None if TaskState(task.state) in TERMINAL else task.sandbox_wait,
        "verified": task.verified,
        "failure": task.failure,
        "summary": task.summary,
        "model_tier": task.model_tier,
        "metadata": task.labels,
        "plan_revision": task.plan_revision,
        "last_seq": task.last_seq,
        "cancel_requested_at": task.cancel_requested_at,
        "created_at": task.created_at,
        "updated_at": task.updated_at,
        "started_at": task.started_at,
        "finished_at": task.finished_at,
    }


def _metadata_pair(value: str) -> str:
    if "=" not in value:
        raise ValueError("must have the form name=value")
    return value


class TaskFilter(BaseModel):
    """Query of ``GET /tasks``."""

    model_config = ConfigDict(extra="forbid")

    state: list[TaskState] = []
    """Tasks in any of these states."""
    metadata: list[Annotated[PlainText, Field(max_length=600), AfterValidator(_metadata_pair)]] = []
    """``name=value``: tasks that carry all of these pairs."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    cursor: Annotated[str, Field(max_length=500)] | None = None
    limit: PageLimit = DEFAULT_LIMIT
