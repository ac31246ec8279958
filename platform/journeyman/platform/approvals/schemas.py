"""Approvals as the API takes them and shows them, and the policy that asks for them."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from journeyman.agents.approvals import Requirement
from journeyman.platform.approvals.models import Approval
from journeyman.platform.http.fields import (
    Input,
    Line,
    PlainText,
    not_blank,
)
from journeyman.platform.http.pagination import DEFAULT_LIMIT, PageLimit
from journeyman.platform.kit.database import Json

DAY: Final = 24 * 3600
LONGEST_WAIT: Final = 30 * DAY

Word = Requirement
State = Literal["pending", "approved", "rejected", "expired", "withdrawn"]
Note = Annotated[PlainText, AfterValidator(not_blank), Field(max_length=8000)]

_TOOL: Final = re.compile(r"[a-z0-9_*?]{1,200}", re.IGNORECASE)


def _tool_name(value: str) -> str:
    if _TOOL.fullmatch(value) is None:
        raise ValueError("must be the name of a tool; * stands for any text and ? for one character")
    if value.startswith("submit_"):
        raise ValueError("is how a role hands over, which is no tool call to approve; for plans use plan: always")
    return value


class Rule(Input):
    """Whether calls of some tools need a person. The first rule that matches decides."""

    tool: Annotated[PlainText, AfterValidator(_tool_name)]
    """Name of the tool; ``*`` stands for any text, ``?`` for one character: ``mcp__github__*``."""
    pattern: Annotated[PlainText, AfterValidator(not_blank), Field(max_length=500)] | None = None
    """What the whole command, path or query must look like; ``*`` and ``?`` as above, all else literally. A shell command is
    taken apart first, and each simple command in it is matched for itself: ``git push*`` also finds the one in
    ``cd lib && git push``."""
    require: Requirement


class ApprovalPolicy(Input):
    """What a person must approve before it happens."""

    plan: Literal["never", "always"] = "never"
    tools: Requirement = "never"
    """For calls that no rule matches. ``always``: every call that can change something; ``on_risk``: those that are
    risky, or not known to be harmless."""
    rules: Annotated[list[Rule], Field(max_length=50)] = []
    expires_after_s: Annotated[int, Field(ge=1, le=LONGEST_WAIT)] = DAY
    escalate_after_s: Annotated[int, Field(ge=1, le=LONGEST_WAIT)] | None = None
    """When somebody else is to be told that nobody has decided: an event and a metric. Default: never."""
    on_expiry: Literal["reject", "approve"] = "reject"
    """What follows when nobody has decided in time."""

    @model_validator(mode="after")
    def _escalates_before_it_expires(self) -> Self:
        if self.escalate_after_s is not None and self.escalate_after_s >= self.expires_after_s:
            raise ValueError(
                f"escalate_after_s ({self.escalate_after_s}) must be less than expires_after_s ({self.expires_after_s})"
            )
        return self


def _kind_of(value: Any) -> str:
    return "[word]" if isinstance(value, str) else "[object]"


PolicyInput = Annotated[
    Annotated[Word, Tag("[word]")] | Annotated[ApprovalPolicy, Tag("[object]")], Discriminator(_kind_of)
]
"""A policy, or a word for a common one: ``never``; ``on_risk`` for risky and unknown tool calls; ``always`` for the plan and every tool
call that can change something."""

_WORDS: Final = {
    "on_risk": ApprovalPolicy(tools="on_risk"),
    "always": ApprovalPolicy(plan="always", tools="always"),
}


def normalised(given: "Word | ApprovalPolicy") -> Json:
    """As it is stored: nothing at all for a policy that never asks."""
    policy = _WORDS.get(given) if isinstance(given, str) else given
    if policy is None or (
        policy.plan == "never" and policy.tools == "never" and all(rule.require == "never" for rule in policy.rules)
    ):
        return {}
    return policy.model_dump(mode="json", exclude_none=True)


class Decide(Input):
    """A person's decision."""

    decision: Literal["approve", "reject"]
    note: Note | None = None
    """For the agent: why, or what to do instead."""
    edited: Json | None = None
    """Only with ``approve``: what is approved in the place of what was asked. Of a tool call, all its arguments; of a plan, the
    whole plan ``{subtasks, acceptance}``."""


class DecidePlan(Input):
    """The approval of the plan that waits."""

    note: Note | None = None
    revision: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """The revision that was looked at: if the plan has been edited since, nothing is decided."""


class RejectPlan(Input):
    note: Note
    """Why: the Planner plans again with it."""
    revision: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class ApprovalView(BaseModel):
    """Something that waits for a person, or waited."""

    id: str
    project_id: str
    task_id: str
    kind: Literal["plan", "tool_call"]
    subject: Json
    """``{revision}`` of a plan, which ``GET /tasks/{id}/plan?revision=`` shows; ``{call_id, tool, arguments, reason, role}`` of
    a tool call."""
    thread_id: str | None
    subtask_id: str | None
    state: State
    on_expiry: Literal["approve", "reject"]
    note: str | None
    edited: Json | None
    decided_by: str | None
    """Id of the API key; null for what the platform decided."""
    requested_at: datetime
    expires_at: datetime | None
    escalate_at: datetime | None
    escalated_at: datetime | None
    decided_at: datetime | None

    @classmethod
    def of(cls, approval: Approval) -> "ApprovalView":
        return cls(**{name: getattr(approval, name) for name in cls.model_fields})


class ApprovalPage(BaseModel):
    """Newest first. ``next_cursor`` is null on the last page."""

    data: list[ApprovalView]
    next_cursor: str | None


class ApprovalFilter(BaseModel):
    """Query of ``GET /approvals``."""

    model_config = ConfigDict(extra="forbid")

    state: list[State] = []
    """Approvals in any of these states."""
    kind: Literal["plan", "tool_call"] | None = None
    task_id: Annotated[Line, Field(max_length=80)] | None = None
    escalated: bool | None = None
    cursor: Annotated[str, Field(max_length=500)] | None = None
    limit: PageLimit = DEFAULT_LIMIT
