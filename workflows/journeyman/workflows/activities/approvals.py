"""Approvals by people: of plans and of tool calls."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncSession
from temporalio import activity

from journeyman.agents.approvals import Policy, needed
from journeyman.agents.output import cut_text
from journeyman.agents.plans import Plan, validate_plan
from journeyman.agents.tools import ParsedCall
from journeyman.platform.approvals import repository, service
from journeyman.platform.approvals.models import Approval
from journeyman.platform.approvals.service import Ask
from journeyman.platform.approvals.withdrawal import withdraw
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.plans import queries
from journeyman.platform.plans import repository as plans
from journeyman.platform.plans.models import Plan as StoredPlan
from journeyman.platform.tasks.contract import TaskState
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task
from journeyman.workflows.activities.loaded_step import LoadedStep
from journeyman.workflows.activities.tool_calls import CallDecision, ToolCall
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import PendingApprovals, PlanVerdict, RequestPlanApproval, TaskApprovals

SHOWN_ARGUMENTS: Final = 4000
"""Characters of a call's arguments that an agent is shown again when a person has changed them."""

_MARGIN: Final = timedelta(milliseconds=50)


class ApprovalActivities:
    def __init__(self, database: Database) -> None:
        self._database = database

    @activity.defn
    @beating
    async def settle_approvals(self, request: TaskApprovals) -> PendingApprovals:
        """Escalate or expire those of the approvals that are due; returns which are still pending."""
        async with self._database.transaction() as session:
            settled = await service.settle(session, request.task.task_id, request.approvals)
            pending = [approval for approval in settled if approval.state == "pending"]
            due = [moment for approval in pending for moment in _due(approval)]
        recheck = (min(due) + _MARGIN - now()).total_seconds() if due else 24 * 3600.0
        return PendingApprovals(
            pending=[approval.id for approval in pending], recheck_after_s=max(recheck, _MARGIN.total_seconds())
        )

    @activity.defn
    @beating
    async def request_plan_approval(self, request: RequestPlanApproval) -> str:
        """Request a person's approval of the plan, and have the task wait for it; returns the approval's id."""
        task = request.task
        ask = Ask("plan", {"revision": request.revision}, f"{_plan_keys(task.task_id, task.epoch)}{request.revision}")
        async with self._database.transaction() as session:
            occasion = step_keys.state_change(task.task_id, task.epoch, request.revision, TaskState.AWAITING_APPROVAL)
            await lifecycle.transition(session, task.task_id, TaskState.AWAITING_APPROVAL, step_key=occasion)
            (approval,) = await service.request(session, task.task_id, [ask])
            return approval.id

    @activity.defn
    @beating
    async def plan_verdict(self, request: TaskApprovals) -> PlanVerdict:
        """How the approval of a plan ended. An edited plan that breaks the Planner's rules counts as rejected for that."""
        async with self._database.transaction() as session:
            (approval,) = await service.settle(session, request.task.task_id, request.approvals)
            plan = await plans.get_plan(session, approval.task_id, approval.subject["revision"])
            last = await queries.last_revision(session, approval.task_id)
        verdict = PlanVerdict(state="withdrawn", revision=plan.revision, last_revision=last)
        if runs(approval):
            problems = _problems(plan) if plan.author is not None else []
            verdict.state = "rejected" if problems else "approved"
            if problems:
                verdict.reason = "\n".join(["A person changed the plan so that it cannot be carried out:", *problems])
        elif approval.state == "rejected":
            titles = "\n".join(f"- {subtask['id']}: {subtask['title']}" for subtask in plan.subtasks)
            verdict.state = "rejected"
            verdict.reason = (
                f"A person rejected the plan. They say:\n{approval.note}\n\nThe rejected plan was:\n{titles}"
            )
        elif approval.state == "expired":
            verdict.state = "expired"
            verdict.reason = "Nobody decided on the plan in time, and the task's approval policy rejects it then."
        return verdict


def _plan_keys(task_id: str, epoch: int) -> str:
    """Prefix of the step keys of all plan approvals of an epoch: a rewind has plans approved anew."""
    return step_keys.plan_approval(task_id, epoch)


def asks_for_plans(task: Task) -> bool:
    """Whether the task's policy wants every plan approved."""
    return Policy.of(task.approval_policy).plan == "always"


async def unapproved(session: AsyncSession, task: Task, revision: int) -> bool:
    """Whether the plan needs a person's approval before work on it begins.

    Not once it has begun: a task that was rewound or forked into the middle of its work had the approval before.
    """
    if not asks_for_plans(task):
        return False
    if await plans.has_begun(session, task.id, revision):
        return False
    asked = await repository.plans_with_prefix(session, task.id, _plan_keys(task.id, task.epoch))
    return not any(runs(approval) and approval.subject["revision"] == revision for approval in asked)


def runs(approval: Approval) -> bool:
    """Whether the approved action is executed."""
    return approval.state == "approved" or (approval.state == "expired" and approval.on_expiry == "approve")


async def request_call_approvals(
    database: Database, loaded: LoadedStep, calls: Sequence[ToolCall]
) -> tuple[list[str], list[ToolCall]]:
    """Ask people for the calls that the task's policy names, all at once.

    Returns the ids of approvals that are pending, and the calls with the decisions on them. While one is pending, no call of the
    step may be executed. Of an interrupted step, pending approvals are withdrawn and no new ones requested.
    """
    step, task = loaded.step, loaded.task
    policy = Policy.of(task.approval_policy)
    open_ = [
        (call.key, call.parsed)
        for call in calls
        if isinstance(call.parsed, ParsedCall) and call.result_key not in loaded.stored
    ]
    # Parsing a long command blocks the event loop, on which heartbeats run: use a thread.
    reasons = await asyncio.to_thread(lambda: [needed(policy, parsed) for _, parsed in open_])
    asks = {
        _approval_key(key): Ask(
            "tool_call",
            {
                "call_id": key,
                "tool": parsed.name,
                "arguments": parsed.values,
                "reason": reason,
                "role": step.thread.role,
            },
            _approval_key(key),
            thread_id=step.thread.thread_id,
            subtask_id=step.thread.subtask_id,
        )
        for (key, parsed), reason in zip(open_, reasons, strict=True)
        if reason is not None
    }
    if not asks:
        return [], list(calls)
    async with database.transaction() as session:
        if step.interrupted:
            locked = await lock_task(session, task.id)
            found = list((await repository.by_step(session, list(asks))).values())
            await withdraw(session, locked, "interrupted", only=[approval.id for approval in found])
        else:
            found = await service.request(session, task.id, list(asks.values()))
    pending = [approval.id for approval in found if approval.state == "pending"]
    decisions = {approval.subject["call_id"]: _decision(approval) for approval in found}
    return pending, [
        call.decided(step.thread.role, decisions[call.key]) if call.key in decisions else call for call in calls
    ]


def _approval_key(call_key: str) -> str:
    return step_keys.part(call_key, "approval")


def _decision(approval: Approval) -> CallDecision:
    run = runs(approval)
    note = f"\nThey say: {approval.note}" if approval.note else ""
    if run and approval.edited is not None:
        shown = cut_text(json.dumps(approval.edited, ensure_ascii=False, sort_keys=True), SHOWN_ARGUMENTS)
        tool = approval.subject["tool"]
        text = f"[A person changed this call before approving it. What was run instead: {tool} {shown}{note}]"
    elif run:
        text = f"[A person approved this call.{note}]" if note else ""
    elif approval.state == "rejected":
        text = f"Not run: a person rejected this call.{note}\nDo not try to reach the same by other means."
    elif approval.state == "expired":
        text = (
            "Not run: nobody decided in time whether this call is allowed, and the task's approval policy rejects it then. "
            "Go on without it if you can; if not, hand over what is done and say what is missing."
        )
    else:
        text = "Not run: the question whether this call is allowed was withdrawn before anybody answered it."
    return CallDecision(approval.id, approval.state, run, text, approval.edited if run else None)


def _due(approval: Approval) -> list[datetime]:
    """When a pending approval is escalated or expires."""
    moments = [approval.expires_at]
    if approval.escalated_at is None:
        moments.append(approval.escalate_at)
    return [moment for moment in moments if moment is not None]


def _problems(plan: StoredPlan) -> list[str]:
    """Violations of the Planner's rules by an edited plan."""
    try:
        found = validate_plan(Plan.model_validate({"subtasks": plan.subtasks, "acceptance": plan.acceptance}))
        return [str(problem) for problem in found]
    except ValidationError as error:
        return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:10]]
