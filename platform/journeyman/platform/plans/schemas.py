"""Plans as the API shows them."""

from datetime import datetime

from pydantic import BaseModel

from journeyman.platform.plans.models import Plan, Subtask


class SubtaskView(BaseModel):
    """A subtask as planned, and how far it is."""

    id: str
    title: str
    instructions: str
    depends_on: list[str]
    acceptance: list[str]
    state: str
    """``pending``, ``running``, ``completed`` or ``failed``; ``superseded`` of a plan that a rewind went back to before."""
    rounds: int
    """Reviews so far."""
    summary: str | None
    base_snapshot: str | None
    snapshot: str | None


class RevisionView(BaseModel):
    revision: int
    reason: str | None
    """Why the plan before this one was given up; null for the first."""
    created_at: datetime


class PlanView(BaseModel):
    """One revision of the plan; ``revisions`` lists them all, the oldest first."""

    id: str
    task_id: str
    revision: int
    subtasks: list[SubtaskView]
    acceptance: list[str]
    reason: str | None
    created_at: datetime
    revisions: list[RevisionView]

    @classmethod
    def of(cls, plan: Plan, progress: dict[str, Subtask], revisions: list[Plan]) -> "PlanView":
        subtasks = []
        for planned in plan.subtasks:
            row = progress.get(planned["id"])
            subtasks.append(
                SubtaskView(
                    id=planned["id"],
                    title=planned["title"],
                    instructions=planned["instructions"],
                    depends_on=planned.get("depends_on") or [],
                    acceptance=planned.get("acceptance") or [],
                    state=row.state if row else "pending",
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
            created_at=plan.created_at,
            revisions=[
                RevisionView(revision=each.revision, reason=each.reason, created_at=each.created_at)
                for each in revisions
            ],
        )
