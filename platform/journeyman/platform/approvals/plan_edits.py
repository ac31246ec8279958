"""A person's changes to a plan: checked by the rules of a Planner's plan, then a revision of its own."""

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents.plans import validate_plan
from journeyman.platform.approvals.models import Approval
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.http.fields import refuse
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.plans import queries, repository
from journeyman.platform.plans.models import Plan
from journeyman.platform.plans.schemas import PlanInput
from journeyman.platform.tasks.models import Task

_MAX_PROBLEMS: Final = 10


def parse(raw: Json, *, field: str) -> PlanInput:
    """A plan from JSON. Raises :class:`InvalidInput` that blames the fields within ``field``."""
    try:
        return PlanInput.model_validate(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise _invalid([(_location(field, each["loc"]), each["msg"]) for each in found[:_MAX_PROBLEMS]]) from None


async def store(session: AsyncSession, task: Task, approval: Approval, wanted: PlanInput, *, by: str) -> Plan:
    """Make the plan that the approval is about another one: a new revision, unless it says the same already.

    The caller holds the locks of the task and of the approval. Raises :class:`InvalidInput` for a plan that cannot be
    carried out.
    """
    if problems := validate_plan(wanted):
        raise _invalid(problems)
    before = await repository.get_plan(session, task.id, approval.subject["revision"])
    dumped = wanted.model_dump(mode="json")
    if before.subtasks == dumped["subtasks"] and before.acceptance == dumped["acceptance"]:
        return before
    revision = 1 + await queries.last_revision(session, task.id)
    await repository.add_revision(
        session,
        project_id=task.project_id,
        task_id=task.id,
        revision=revision,
        subtasks=dumped["subtasks"],
        acceptance=dumped["acceptance"],
        reason=before.reason,
        author=by,
    )
    proposed = approval.subject.get("proposed", before.revision)
    approval.subject = {**approval.subject, "revision": revision, "proposed": proposed}
    task.plan_revision = revision
    data = {"revision": revision, "from_revision": before.revision, "author": by, "approval_id": approval.id, **dumped}
    await append(session, task.id, EventType.PLAN_EDITED, data, thread_id=approval.thread_id)
    return await repository.get_plan(session, task.id, revision)


def _location(field: str, loc: tuple[int | str, ...]) -> str:
    text = field
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text[:200]


def _invalid(problems: Sequence[tuple[str, str]]) -> InvalidInput:
    if len(problems) == 1:
        return refuse(*problems[0])
    return InvalidInput(
        "The plan cannot be carried out: " + " ".join(f"{field}: {message}" for field, message in problems),
        errors=[{"field": field, "message": message} for field, message in problems],
    )
