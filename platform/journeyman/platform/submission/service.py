"""Submitting and listing tasks."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals.schemas import normalised
from journeyman.platform.egress.addresses import AddressPolicy
from journeyman.platform.egress.destinations import refusal_of_literal
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.http.fields import refuse
from journeyman.platform.http.pagination import Position, decode_cursor, page_of
from journeyman.platform.idempotency import service as idempotency
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.ids import is_id, new_id
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import inject
from journeyman.platform.outbox import service as outbox
from journeyman.platform.replay.catalog import ReplayCatalog
from journeyman.platform.submission.schemas import (
    ArchiveWorkspace,
    GitWorkspace,
    SubmitTask,
    TaskFilter,
    TaskResources,
)
from journeyman.platform.tasks import repository
from journeyman.platform.tasks.contract import StartTask, TaskState
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import TaskQuery
from journeyman.platform.tasks.service import read
from journeyman.platform.uploads import repository as uploads

_TITLE_LENGTH: Final = 80


@dataclass(frozen=True, slots=True)
class Submitted:
    """``replayed`` tells that the task was there already, under the same idempotency key."""

    task: Task
    replayed: bool


@dataclass(frozen=True, slots=True)
class Submission:
    """What a request asks for, beside its transaction."""

    project_id: str
    body: SubmitTask
    idempotency_key: str | None


class TaskService:
    """Policy of tasks. ``catalog`` is asked only while the replay engine stands in for a model."""

    def __init__(self, settings: Settings, catalog: ReplayCatalog) -> None:
        self._settings = settings
        self._catalog = catalog

    async def submit(self, session: AsyncSession, submission: Submission) -> Submitted:
        """Accept a task: its row, its first event, its idempotency key and its start, in the caller's transaction.

        Raises :class:`InvalidInput` for what cannot be carried out, :class:`Conflict` for an idempotency key that was
        used with another body.
        """
        body, key = submission.body, submission.idempotency_key
        task_id = new_id("task")
        request = body.model_dump(mode="json", exclude_unset=True)
        earlier = await idempotency.claim(session, submission.project_id, key, "submit", request, task_id)
        if earlier is not None:
            return Submitted(await read(session, submission.project_id, earlier), replayed=True)
        check_engine(self._settings, self._catalog, body.instruction)
        await self._check_workspace(session, submission)
        self._check_resources(body.environment.resources)
        if body.environment.secrets:
            name = body.environment.secrets[0]
            raise refuse("environment.secrets[0]", f"this project has no secret named {name}.", code="unknown_secret")
        task = _new_task(task_id, submission.project_id, body)
        await repository.add(session, task)
        data = {"title": task.title, "state": task.state, "workspace": task.workspace, "acceptance": task.acceptance}
        await append(session, task_id, EventType.TASK_CREATED, data)
        start = StartTask(task_id=task_id, project_id=submission.project_id, trace_context=task.trace_context)
        await outbox.enqueue_start(session, start)
        await session.refresh(task, ["last_seq", "updated_at"])
        return Submitted(task, replayed=False)

    def _check_resources(self, resources: TaskResources) -> None:
        settings = self._settings
        for name, limit, setting in (
            ("memory_mb", settings.sandbox_max_memory_mb, "JOURNEYMAN_SANDBOX_MAX_MEMORY_MB"),
            ("disk_mb", settings.sandbox_max_disk_mb, "JOURNEYMAN_SANDBOX_MAX_DISK_MB"),
            ("cpus", settings.sandbox_max_cpus, "JOURNEYMAN_SANDBOX_MAX_CPUS"),
            ("pids", settings.sandbox_max_pids, "JOURNEYMAN_SANDBOX_MAX_PIDS"),
        ):
            asked = getattr(resources, name)
            if asked is not None and asked > limit:
                raise refuse(
                    f"environment.resources.{name}",
                    f"is {asked}; this installation allows a sandbox at most {limit} ({setting}).",
                    code="resources_over_limit",
                )

    async def _check_workspace(self, session: AsyncSession, submission: Submission) -> None:
        workspace = submission.body.workspace
        if isinstance(workspace, ArchiveWorkspace):
            snapshot = None
            if is_id("upload", workspace.upload_id):
                snapshot = await uploads.snapshot_of(session, submission.project_id, workspace.upload_id)
            if snapshot is None:
                raise refuse("workspace.upload_id", f"this project has no upload {workspace.upload_id}.")
        if isinstance(workspace, GitWorkspace):
            policy = AddressPolicy.for_git(self._settings)
            if policy.public_only and workspace.url.lower().startswith("http://"):
                raise refuse("workspace.url", "must begin with https://; plain http could be changed on its way.")
            refusal = refusal_of_literal(workspace.url, policy)
            if refusal is not None:
                raise refuse("workspace.url", f"names {refusal}.")


def check_engine(settings: Settings, catalog: ReplayCatalog, instruction: str) -> None:
    """Raise :class:`InvalidInput` for an instruction that only a model could follow, while none is configured."""
    if settings.uses_replay_engine and not catalog.knows(instruction):
        raise refuse(
            "instruction",
            "no model is configured, and the replay engine that stands in plays only the bundled demo tasks. Set "
            "JOURNEYMAN_MODEL_BASE_URL (and JOURNEYMAN_MODEL_API_KEY) to an OpenAI-compatible API and restart.",
            code="no_model_configured",
        )


async def page(session: AsyncSession, project_id: str, wanted: TaskFilter) -> tuple[list[Task], str | None]:
    """One page, newest first, and the cursor of the next one."""
    metadata = dict(pair.split("=", 1) for pair in wanted.metadata)
    for name in ("created_after", "created_before"):
        moment = getattr(wanted, name)
        if moment is not None and moment.tzinfo is None:
            raise refuse(name, "must say its time zone, for example 2026-01-31T12:00:00Z.")
        if moment is not None and not 1970 <= moment.year <= 9000:
            raise refuse(name, "must be a year from 1970 to 9000.")
    found = await repository.find(
        session,
        project_id,
        TaskQuery(
            states=[state.value for state in wanted.state],
            metadata=metadata,
            created_after=wanted.created_after,
            created_before=wanted.created_before,
            before=decode_cursor(wanted.cursor),
            limit=wanted.limit + 1,
        ),
    )
    return page_of(found, wanted.limit, lambda row: Position(row.created_at, row.id))


def _stored(model: Any) -> dict[str, Any]:
    stored: dict[str, Any] = model.model_dump(mode="json", exclude_none=True)
    return stored


def _title(body: SubmitTask) -> str:
    if body.title is not None:
        return body.title.strip()
    line = " ".join(body.instruction.strip()[:1000].splitlines()[0].split())
    line = "".join(character for character in line if character.isprintable())
    return (line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…") or "Untitled"


def _new_task(task_id: str, project_id: str, body: SubmitTask) -> Task:
    return unstarted(
        id=task_id,
        project_id=project_id,
        title=_title(body),
        instruction=body.instruction,
        workspace=_stored(body.workspace),
        environment=_stored(body.environment),
        acceptance=body.acceptance,
        agent_profile=body.agent_profile,
        model_tier=body.model_tier,
        models=_stored(body.models),
        budget=_stored(body.budget),
        approval_policy=normalised(body.approval_policy),
        memory=body.memory.model_dump(),
        labels=body.metadata,
        plan_revision=0,
        initial_snapshot=None,
        head_snapshot=None,
        forked_from=None,
        inherited={},
    )


def unstarted(**given: Any) -> Task:
    """A task for which nothing was done yet, submitted by the request under way; ``given``: the columns that tell it from others."""
    moment = now()
    return Task(
        **given,
        state=TaskState.QUEUED.value,
        paused_reason=None,
        paused_detail=None,
        waiting_for=[],
        verified=None,
        failure=None,
        summary=None,
        cancel_requested_at=None,
        last_seq=0,
        message_count=0,
        epoch=0,
        trace_context=inject(),
        created_at=moment,
        updated_at=moment,
        started_at=None,
        finished_at=None,
        worked_s=Decimal(0),
        working_since=None,
    )
