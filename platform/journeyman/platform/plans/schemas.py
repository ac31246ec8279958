"""Plans as the API takes them and shows them."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator

from journeyman.agents.plans import MAX_COMMANDS, SUBTASK_ID, SUBTASK_ID_RULE, Command, Plan, Subtask
from journeyman.platform.kit.text import unstorable
from journeyman.platform.plans.service import FoundPlan


class SubtaskInput(Subtask):
    """One piece of work for one Coder. The rules are those of a Planner's plan."""

    @field_validator("*")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        if (problem := unstorable(value)) is not None:
            raise ValueError(problem)
        return value

    @field_validator("id")
    @classmethod
    def _named(cls, value: str) -> str:
        if SUBTASK_ID.fullmatch(value) is None:
            raise ValueError(SUBTASK_ID_RULE)
        return value


class PlanInput(Plan):
    """A whole plan, in the place of the one that waits for approval."""

    subtasks: list[SubtaskInput]  # type: ignore[assignment]  # each is a Subtask, and nothing is added to the list
    acceptance: Annotated[list[Command], Field(max_length=MAX_COMMANDS)] = []
    """Commands for the task as a whole, beside those it was submitted with, which are always run."""

    @field_validator("acceptance")
    @classmethod
    def _storable(cls, value: list[str]) -> list[str]:
        if (problem := unstorable(value)) is not None:
            raise ValueError(problem)
        return value


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
