"""Hand-overs of roles: plan, work or review, and what follows from a review."""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents.arguments import SubmitReview, SubmitWork
from journeyman.agents.plans import Plan
from journeyman.agents.review import Next, after_review, rejection_reason
from journeyman.agents.tools import ParsedCall
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.plans import repository as plans
from journeyman.platform.tasks.repository import lock_task
from journeyman.platform.threads import repository as threads
from journeyman.workflows.types import Step

FINDINGS_REPORT: Final = 4000
"""Characters of a review that travel in the workflow's history, for the report on a subtask that was given up."""


async def record_submission(session: AsyncSession, step: Step, parsed: ParsedCall) -> None:
    """Store the plan, summary or review of a terminal call, with its event."""
    thread = step.thread
    task_id = thread.task.task_id
    match parsed.arguments:
        case Plan() as plan:
            task = await lock_task(session, task_id)
            dumped = plan.model_dump(mode="json")
            await plans.add_revision(
                session,
                project_id=thread.task.project_id,
                task_id=task_id,
                revision=thread.revision,
                subtasks=dumped["subtasks"],
                acceptance=dumped["acceptance"],
                reason=None,
            )
            task.plan_revision = thread.revision
            await append(
                session,
                task_id,
                EventType.PLAN_PROPOSED if thread.revision == 1 else EventType.PLAN_REVISED,
                {"revision": thread.revision, **dumped},
                thread_id=thread.thread_id,
            )
        case SubmitWork() as work:
            assert thread.subtask_id is not None
            subtask = await plans.get_subtask(session, task_id, thread.revision, thread.subtask_id)
            subtask.summary = work.summary
        case SubmitReview() as review:
            approved = review.verdict == "approve"
            await append(
                session,
                task_id,
                EventType.REVIEW_APPROVED if approved else EventType.REVIEW_CHANGES_REQUESTED,
                {"findings": [finding.model_dump(mode="json") for finding in review.findings]},
                thread_id=thread.thread_id,
                subtask_id=thread.subtask_id,
            )
        case _:
            raise TypeError(f"{type(parsed.arguments).__name__} hands nothing over")


async def judge(session: AsyncSession, step: Step, review: SubmitReview) -> tuple[str, str | None]:
    """What follows from the verdict by the rules of the agents' package, and why; see ``StepOutcome``."""
    thread = await threads.get_thread(session, step.thread.thread_id)
    changed = True
    if thread.attempt > 1:
        before = await threads.get_thread(
            session,
            threads.thread_id_for(
                thread.task_id, thread.role, thread.subtask_id, thread.revision, thread.attempt - 1, thread.epoch
            ),
        )
        changed = before.base_snapshot != thread.base_snapshot
    decision = after_review(review, round_number=thread.attempt, work_changed=changed)
    reason = decision.reason
    if decision.next == Next.REPLAN:
        findings = rejection_reason(thread.subtask_id or "", review.findings, thread.attempt)
        reason = f"{decision.reason}\n{findings}"[:FINDINGS_REPORT]
    return decision.next.value, reason
