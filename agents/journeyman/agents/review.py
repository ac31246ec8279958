"""What follows from a verdict: the work is accepted, revised, planned anew, or given up.

Rounds and revisions are bounded, so that every task comes to an end whatever the models do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from journeyman.agents.arguments import Finding, SubmitReview
from journeyman.agents.output import cut_text

OUTPUT_LIMIT = 4 * 1024
"""Bytes of one failed command's output that the next Planner reads."""


class Next(StrEnum):
    """Where a subtask goes from here."""

    ACCEPT = "accept"
    REVISE = "revise"
    REPLAN = "replan"


class ReviewPolicy(BaseModel):
    """``max_rounds`` reviews for a subtask, then a new plan; ``max_plans`` plans for a task, the first included.

    Three rounds: in the first two a Coder repairs what was overlooked; what is still wrong in a third was understood
    wrongly, and a better instruction helps more than a fourth attempt. Three plans for the same reason. Work that
    conflicts with what others did at the same time goes back to its Coder, at most ``max_conflicts`` times.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_rounds: int = Field(default=3, ge=1, le=20)
    max_plans: int = Field(default=3, ge=1, le=20)
    max_conflicts: int = Field(default=5, ge=1, le=20)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why in one sentence for the event log."""

    next: Next
    reason: str


@dataclass(frozen=True, slots=True)
class FailedCommand:
    """An acceptance command that did not pass, as the platform saw it."""

    command: str
    exit_code: int | None
    output: str


def after_review(
    review: SubmitReview,
    *,
    round_number: int,
    policy: ReviewPolicy | None = None,
    work_changed: bool = True,
) -> Decision:
    """What a review in round ``round_number`` (from 1) leads to.

    ``work_changed`` is whether the workspace differs from the one reviewed in the round before: without a change a
    further round would only repeat this one.
    """
    rules = policy or ReviewPolicy()
    if review.verdict == "approve":
        return Decision(Next.ACCEPT, f"Approved in round {round_number}.")
    serious = [finding for finding in review.findings if finding.severity != "minor"]
    if not serious and round_number > 1:
        # The Reviewer's own scale says that minor findings are not worth a round; the first round takes them along.
        return Decision(Next.ACCEPT, f"Only minor findings are left in round {round_number}.")
    if round_number > 1 and not work_changed:
        return Decision(Next.REPLAN, f"Round {round_number} changed nothing in the workspace.")
    if round_number >= rules.max_rounds:
        return Decision(Next.REPLAN, f"Changes were still requested in round {round_number} of {rules.max_rounds}.")
    return Decision(Next.REVISE, f"Changes requested in round {round_number} of {rules.max_rounds}.")


def rejection_reason(subtask_id: str, findings: Sequence[Finding], rounds: int) -> str:
    """For the Planner: why a subtask was given back."""
    listed = "\n".join(
        f"- [{finding.severity}] {finding.path + ': ' if finding.path else ''}{finding.message}" for finding in findings
    )
    return f"Subtask {subtask_id} was not approved after {rounds} round(s). Last findings:\n{listed}"


def acceptance_reason(failed: Sequence[FailedCommand]) -> str:
    """For the Planner: which acceptance commands failed, with the output of each."""
    parts = []
    for item in failed:
        ended = "did not end in time" if item.exit_code is None else f"ended with exit code {item.exit_code}"
        output = cut_text(item.output, OUTPUT_LIMIT).rstrip() or "(no output)"
        parts.append(f"This acceptance command {ended}:\n{item.command}\nOutput:\n{output}")
    return "The platform ran the acceptance commands in a clean sandbox. " + "\n\n".join(parts)
