"""Plans as the API takes them and shows them."""

import re
from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, Field

from journeyman.platform.http.fields import Input, PlainText, not_blank
from journeyman.platform.plans.service import FoundPlan

MAX_SUBTASKS: Final = 30
MAX_COMMANDS: Final = 20

_SUBTASK_ID: Final = re.compile(r"[a-z0-9_-]{1,40}")


def _subtask_id(value: str) -> str:
    if _SUBTASK_ID.fullmatch(value) is None:
        raise ValueError("must be 1 to 40 of a-z, 0-9, _ and -")
    return value


Commands = Annotated[
    list[Annotated[PlainText, AfterValidator(not_blank), Field(max_length=20_000)]], Field(max_length=MAX_COMMANDS)
]


class SubtaskInput(Input):
    """One piece of work for one Coder."""

    id: Annotated[PlainText, AfterValidator(_subtask_id)]
    title: Annotated[PlainText, AfterValidator(not_blank), Field(max_length=200)]
    instructions: Annotated[PlainText, AfterValidator(not_blank), Field(max_length=50_000)]
    """All that the Coder is told of the plan."""
    depends_on: list[PlainText] = []
    acceptance: Commands = []


class PlanInput(Input):
    """A whole plan, in the place of the one that waits for approval."""

    subtasks: Annotated[list[SubtaskInput], Field(min_length=1, max_length=MAX_SUBTASKS)]
    acceptance: Commands = []
    """Commands for the task as a whole, beside those it was submitted with, which are always run."""


class SubtaskView(BaseModel):
    """A subtask as planned, and how far it is."""

    id: str
    title: str
    instructions: str
    depends_on: list[str]
    acceptance: list[str]
    state: str
    """``pending``, ``running``, ``completed`` or ``failed``; ``stopped`` when the task ended under it; ``superseded`` of a plan that a rewind went back to before."""
    rounds: int
    """Reviews so far."""
    summary: str | None
    base_snapshot: str | None
    snapshot: str | None


class RevisionView(BaseModel):
    revision: int
    reason: str | None
    """Why the plan before this one was given up; null for the first."""
    author: str | None
    """Id of the API key whose edit this is; null for a Planner's plan."""
    created_at: datetime


class PlanView(BaseModel):
    """One revision of the plan; ``revisions`` lists them all, the oldest first."""

    id: str
    task_id: str
    revision: int
    subtasks: list[SubtaskView]
    acceptance: list[str]
    reason: str | None
    author: str | None
    created_at: datetime
    revisions: list[RevisionView]

    @classmethod
    def of(cls, found: FoundPlan) -> "PlanView":
        plan = found.plan
        subtasks = []
        for planned in plan.subtasks:
            row = found.progress.get(planned["id"])
            subtasks.append(
                SubtaskView(
                    id=planned["id"],
                    title=planned["title"],
                    instructions=planned["instructions"],
                    depends_on=planned.get("depends_on") or [],
                    acceptance=planned.get("acceptance") or [],
                    state=found.state_of(planned["id"]),
                    rounds=row.rounds if row else 0,
                    summary=row.summary if row else None,
                    base_snapshot=row.base_snapshot if row else None,
                    snapshot=row.snapshot if row else None,
                )
            )
        return cls(
            id=plan.id,
            task_id=plan.task_id,
            revision=plan.revision,
            subtasks=subtasks,
            acceptance=plan.acceptance,
            reason=plan.reason,
            author=plan.author,
            created_at=plan.created_at,
            revisions=[
                RevisionView(revision=each.revision, reason=each.reason, author=each.author, created_at=each.created_at)
                for each in found.revisions
            ],
        )
