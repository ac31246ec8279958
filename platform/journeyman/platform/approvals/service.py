"""What waits for a person: asking once, deciding once, and what follows when nobody decides.

Whoever changes an approval holds the lock of its task first, so that of a decision, an expiry and a cancellation that
happen at once one is first and the others see it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.approvals import plan_edits as editing
from journeyman.platform.approvals import repository
from journeyman.platform.approvals.models import Approval
from journeyman.platform.approvals.repository import ApprovalQuery
from journeyman.platform.approvals.schemas import DAY, ApprovalFilter, Decide
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.http.fields import refuse
from journeyman.platform.http.pagination import Position, decode_cursor, page_of
from journeyman.platform.idempotency import service as idempotency
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.kit.ids import derived_id, is_id
from journeyman.platform.kit.metrics import APPROVALS, count_after_commit
from journeyman.platform.kit.names import SIGNAL_DECIDED
from journeyman.platform.kit.text import unstorable
from journeyman.platform.outbox import service as outbox
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task

_STATE: Final = {"approve": "approved", "reject": "rejected"}
_TYPES: Final = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
_WITHDRAWN: Final = {
    "cancelled": "the task was cancelled",
    "ended": "the task has ended",
    "rewound": "the task was rewound to a point before it was asked",
    "interrupted": "a person's message interrupted the agent first",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a step asks for. ``subject`` as in the table."""

    kind: Literal["plan", "tool_call"]
    subject: Json
    step_key: str
    thread_id: str | None = None
    subtask_id: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision and who took it: the id of an API key."""

    decision: Literal["approve", "reject"]
    by: str
    note: str | None = None
    edited: Json | None = None


async def request(session: AsyncSession, task_id: str, asks: Sequence[Ask]) -> list[Approval]:
    """The approvals that these steps ask for, in that order; each step asks once, however often it is repeated."""
    task = await lock_task(session, task_id)
    found = await repository.by_step(session, [ask.step_key for ask in asks])
    return [found.get(ask.step_key) or await _request(session, task, ask) for ask in asks]


async def _request(session: AsyncSession, task: Task, ask: Ask) -> Approval:
    policy = task.approval_policy
    moment = now()
    escalate_after = policy.get("escalate_after_s")
    approval = Approval(
        id=derived_id("approval", ask.step_key),
        project_id=task.project_id,
        task_id=task.id,
        kind=ask.kind,
        subject=ask.subject,
        thread_id=ask.thread_id,
        subtask_id=ask.subtask_id,
        step_key=ask.step_key,
        state="pending",
        on_expiry=policy.get("on_expiry", "reject"),
        requested_at=moment,
        expires_at=moment + timedelta(seconds=policy.get("expires_after_s", DAY)),
        escalate_at=None if escalate_after is None else moment + timedelta(seconds=escalate_after),
    )
    await repository.add(session, approval)
    task.waiting_for = [*task.waiting_for, approval.id]
    data = {
        "approval_id": approval.id,
        "kind": approval.kind,
        "subject": approval.subject,
        "expires_at": _iso(approval.expires_at),
        "escalate_at": _iso(approval.escalate_at),
        "on_expiry": approval.on_expiry,
    }
    await _append(session, approval, EventType.APPROVAL_REQUESTED, data)
    count_after_commit(session, APPROVALS, approval.kind, "requested")
    return approval


async def settle(session: AsyncSession, task_id: str, approval_ids: Sequence[str]) -> list[Approval]:
    """How these approvals stand, after what time has done to them: those that are due are escalated or expire now."""
    task = await lock_task(session, task_id)
    settled = []
    for approval_id in approval_ids:
        approval = await repository.lock(session, approval_id)
        if approval.state == "pending":
            moment = now()
            if approval.expires_at is not None and approval.expires_at <= moment:
                await _expire(session, task, approval)
            elif approval.escalate_at is not None and approval.escalate_at <= moment and not approval.escalated_at:
                approval.escalated_at = moment
                data = {
                    "approval_id": approval.id,
                    "kind": approval.kind,
                    "requested_at": _iso(approval.requested_at),
                    "expires_at": _iso(approval.expires_at),
                }
                await _append(session, approval, EventType.APPROVAL_ESCALATED, data)
                count_after_commit(session, APPROVALS, approval.kind, "escalated")
        settled.append(approval)
    return settled


async def _expire(session: AsyncSession, task: Task, approval: Approval) -> None:
    if approval.kind == "plan":
        await _append_plan_verdict(session, approval, approved=approval.on_expiry == "approve")
    await _close(session, task, approval, "expired")


async def read(session: AsyncSession, project_id: str, approval_id: str) -> Approval:
    """The project's approval. Raises :class:`NotFound`, also for another project's."""
    found = await repository.get(session, project_id, approval_id) if is_id("approval", approval_id) else None
    if found is None:
        raise NotFound(f"This project has no approval {approval_id[:80]}.", code="approval_not_found")
    return found


async def page(session: AsyncSession, project_id: str, wanted: ApprovalFilter) -> tuple[list[Approval], str | None]:
    """One page, newest first, and the cursor of the next one."""
    query = ApprovalQuery(
        states=wanted.state,
        kind=wanted.kind,
        task_id=wanted.task_id,
        escalated=wanted.escalated,
        before=decode_cursor(wanted.cursor),
        limit=wanted.limit + 1,
    )
    found = await repository.find(session, project_id, query)
    return page_of(found, wanted.limit, lambda row: Position(row.requested_at, row.id))


async def decide(
    session: AsyncSession,
    project_id: str,
    approval_id: str,
    body: Decide,
    *,
    by: str,
    idempotency_key: str | None = None,
) -> Approval:
    """Take a person's decision. The same one again changes nothing and answers alike.

    Raises :class:`Conflict` with code ``approval_decided``, ``approval_expired`` or ``approval_withdrawn`` when it is too
    late, :class:`InvalidInput` for a change that cannot be meant.
    """
    if body.edited is not None and body.decision == "reject":
        raise refuse("edited", "goes only with approve; tell in note what to do instead.")
    approval = await read(session, project_id, approval_id)
    # Before the key, as every other command on a task: two that have the same key would wait for each other otherwise.
    task = await lock_task(session, approval.task_id)
    request_ = body.model_dump(mode="json", exclude_unset=True)
    command = f"decide {approval_id}"
    earlier = await idempotency.claim(session, project_id, idempotency_key, command, request_, approval_id)
    approval = await repository.lock(session, approval_id)
    if earlier is not None:
        return approval
    verdict = Verdict(decision=body.decision, by=by, note=body.note, edited=body.edited)
    return await settle_verdict(session, task, approval, verdict)


async def settle_verdict(session: AsyncSession, task: Task, approval: Approval, verdict: Verdict) -> Approval:
    """Carry a verdict out on an approval whose task and row are locked."""
    if not still_open(task, approval, verdict):
        return approval
    if verdict.edited is not None:
        await _edit(session, task, approval, verdict)
    approval.note = verdict.note
    approval.decided_by = verdict.by
    if approval.kind == "plan":
        await _append_plan_verdict(session, approval, approved=verdict.decision == "approve")
    await _close(session, task, approval, _STATE[verdict.decision])
    await outbox.enqueue_signal(session, approval.project_id, approval.task_id, SIGNAL_DECIDED, approval.id)
    return approval


def still_open(task: Task, approval: Approval, verdict: Verdict) -> bool:
    """False when the same was decided before; raises :class:`Conflict` when something else was, or time decided."""
    what = "plan" if approval.kind == "plan" else "call"
    facts: dict[str, Any] = {"state": approval.state, "decided_at": _iso(approval.decided_at)}
    if approval.state == "withdrawn" or (approval.state == "pending" and task.cancel_requested_at is not None):
        why = _WITHDRAWN.get(approval.note or "cancelled", "the task went on without it")
        raise Conflict(
            f"This approval was withdrawn: {why}. There is nothing left to decide.", code="approval_withdrawn", **facts
        )
    expired = approval.expires_at is not None and approval.expires_at <= now()
    if approval.state == "expired" or (approval.state == "pending" and expired):
        came = "approved" if approval.on_expiry == "approve" else "rejected"
        raise Conflict(
            f"This approval expired at {_iso(approval.expires_at)}: nobody had decided, so that the {what} was {came}, "
            "as the task's policy says.",
            code="approval_expired",
            **facts,
        )
    if approval.state == "pending":
        return True
    same = approval.state == _STATE[verdict.decision]
    if same and (verdict.edited is None or verdict.edited == approval.edited):
        return False
    another = f"cannot be {_STATE[verdict.decision]} any more" if not same else "cannot be changed any more"
    raise Conflict(
        f"This {what} was {approval.state} by {approval.decided_by} at {_iso(approval.decided_at)}; it {another}.",
        code="approval_decided",
        decided_by=approval.decided_by,
        **facts,
    )


async def _edit(session: AsyncSession, task: Task, approval: Approval, verdict: Verdict) -> None:
    assert verdict.edited is not None
    if approval.kind == "plan":
        wanted = editing.parse(verdict.edited, field="edited")
        await editing.store(session, task, approval, wanted, by=verdict.by)
    else:
        _check_arguments(approval.subject["arguments"], verdict.edited)
    approval.edited = verdict.edited


def _check_arguments(asked: Json, edited: Json) -> None:
    """Refuse what can be seen to be no arguments of the call; the tool's own rules are known to the run, which applies them."""
    if (problem := unstorable(edited)) is not None:
        raise refuse("edited", f"{problem}.")
    if not edited.keys() & asked.keys():
        raise refuse("edited", f"must hold all arguments of the call, as it was asked: {', '.join(sorted(asked))}.")
    for name in edited.keys() & asked.keys():
        if type(edited[name]) is not type(asked[name]):
            raise refuse(f"edited.{name}", f"must be of the same type as what was asked: {_TYPES[type(asked[name])]}.")


async def _append_plan_verdict(session: AsyncSession, approval: Approval, *, approved: bool) -> None:
    data = {
        "revision": approval.subject["revision"],
        "approval_id": approval.id,
        "decided_by": approval.decided_by,
        "note": approval.note,
    }
    await _append(session, approval, EventType.PLAN_APPROVED if approved else EventType.PLAN_REJECTED, data)


async def _close(session: AsyncSession, task: Task, approval: Approval, state: str) -> None:
    approval.state = state
    approval.decided_at = now()
    task.waiting_for = [each for each in task.waiting_for if each != approval.id]
    data = {
        "approval_id": approval.id,
        "kind": approval.kind,
        "decision": state,
        "decided_by": approval.decided_by,
        "note": approval.note,
        "edited": approval.edited is not None,
    }
    if state == "expired":
        data["outcome"] = _STATE[approval.on_expiry]
    await _append(session, approval, EventType.APPROVAL_DECIDED, data)
    count_after_commit(session, APPROVALS, approval.kind, state)


async def _append(session: AsyncSession, approval: Approval, type_: EventType, data: Json) -> None:
    await append(session, approval.task_id, type_, data, thread_id=approval.thread_id, subtask_id=approval.subtask_id)


def _iso(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
