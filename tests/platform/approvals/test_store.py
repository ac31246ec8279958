"""Asking, deciding, expiring and withdrawing in the real store, at once and one after the other."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from journeyman.platform.approvals import service
from journeyman.platform.approvals.models import Approval
from journeyman.platform.approvals.schemas import ApprovalFilter, Decide
from journeyman.platform.approvals.service import Ask
from journeyman.platform.approvals.withdrawal import withdraw
from journeyman.platform.events.models import Event
from journeyman.platform.kit import metrics
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict, InvalidInput, NotFound
from journeyman.platform.lifecycle import service as tasks
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.steering import service as steering
from journeyman.platform.steering.schemas import SendMessage
from journeyman.platform.tasks.contract import TaskState
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task
from support.rows import make_project, make_task

KEY = "key_0"


def call_ask(task_id: str, name: str = "0") -> Ask:
    subject = {"call_id": name, "tool": "shell", "arguments": {"command": "git push"}, "reason": "…", "role": "coder"}
    return Ask("tool_call", subject, f"{task_id}:{name}:approval")


async def make_asking(database: Database, **policy: Any) -> tuple[str, str]:
    """A running task with that policy; its project's id and its own."""
    project_id = await make_project(database)
    task_id = await make_task(database, project_id, state="running")
    async with database.transaction() as session:
        await session.execute(sa.update(Task).where(Task.id == task_id).values(approval_policy=policy))
    return project_id, task_id


async def ask(database: Database, task_id: str, *names: str) -> list[Approval]:
    async with database.transaction() as session:
        return await service.request(session, task_id, [call_ask(task_id, name) for name in names or ("0",)])


async def decide(database: Database, project_id: str, approval_id: str, decision: Any, **more: Any) -> Approval:
    by = more.pop("by", KEY)
    key = more.pop("idempotency_key", None)
    async with database.transaction() as session:
        body = Decide(decision=decision, **more)
        return await service.decide(session, project_id, approval_id, body, by=by, idempotency_key=key)


async def settle(database: Database, task_id: str, *ids: str) -> list[Approval]:
    async with database.transaction() as session:
        return await service.settle(session, task_id, ids)


async def overdue(database: Database, approval_id: str, column: str = "expires_at") -> None:
    async with database.transaction() as session:
        moment = now() - timedelta(seconds=1)
        await session.execute(sa.update(Approval).where(Approval.id == approval_id).values({column: moment}))


async def log(database: Database, task_id: str) -> list[tuple[str, dict[str, Any]]]:
    async with database.transaction() as session:
        rows = await session.execute(
            sa.select(Event.type, Event.data).where(Event.task_id == task_id).order_by(Event.seq)
        )
        return [(row.type, row.data) for row in rows]


async def waiting_for(database: Database, task_id: str) -> list[str]:
    async with database.transaction() as session:
        return (await session.get_one(Task, task_id)).waiting_for


async def signals(database: Database, task_id: str) -> list[list[str]]:
    async with database.transaction() as session:
        rows = await session.scalars(
            sa.select(OutboxEntry)
            .where(OutboxEntry.task_id == task_id, OutboxEntry.kind == "signal_task")
            .order_by(OutboxEntry.id)
        )
        return [[row.payload["signal"], *row.payload["arguments"]] for row in rows]


async def outcome_of(attempt: Coroutine[Any, Any, Any]) -> str:
    try:
        await attempt
    except Conflict as error:
        return error.code
    return "done"


async def held_up(database: Database, holder: int) -> None:
    """Return once another connection waits for a lock that this one holds."""
    waits = sa.text("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE :holder = ANY (pg_blocking_pids(pid)))")
    async with asyncio.timeout(20):
        while True:
            async with database.transaction() as session:
                if await session.scalar(waits, {"holder": holder}):
                    return
            await asyncio.sleep(0.01)


def counted(outcome: str) -> float:
    return metrics.APPROVALS.labels("tool_call", outcome)._value.get()


async def test_a_step_asks_once(database: Database) -> None:
    _, task_id = await make_asking(database, tools="always", expires_after_s=60, escalate_after_s=10)
    before = counted("requested")
    first = await ask(database, task_id, "a", "b")
    again = await ask(database, task_id, "a", "b", "c")
    assert [each.id for each in again[:2]] == [each.id for each in first]
    assert await waiting_for(database, task_id) == [each.id for each in again]
    kinds = [kind for kind, _ in await log(database, task_id)]
    assert kinds == ["approval.requested"] * 3
    assert counted("requested") - before == 3
    assert first[0].expires_at is not None
    assert first[0].expires_at - first[0].requested_at == timedelta(seconds=60)
    assert first[0].escalate_at is not None
    assert first[0].escalate_at - first[0].requested_at == timedelta(seconds=10)


async def test_many_attempts_at_a_step_at_once_ask_once(database: Database) -> None:
    _, task_id = await make_asking(database)
    asked = await asyncio.gather(*(ask(database, task_id, "a", "b") for _ in range(8)))
    assert len({tuple(each.id for each in attempt) for attempt in asked}) == 1
    assert len(await log(database, task_id)) == 2


async def test_a_decision_is_written_with_its_event_and_its_signal(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    first, second = await ask(database, task_id, "a", "b")
    decided = await decide(database, project_id, first.id, "approve", note="fine", edited={"command": "git status"})
    assert (decided.state, decided.note, decided.decided_by) == ("approved", "fine", KEY)
    assert await waiting_for(database, task_id) == [second.id]
    kind, data = (await log(database, task_id))[-1]
    assert kind == "approval.decided"
    assert data["decision"] == "approved"
    assert data["edited"] is True
    assert await signals(database, task_id) == [["decided", first.id]]


async def test_of_twenty_decisions_at_once_one_counts(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    (asked,) = await ask(database, task_id)
    choices = ["approve", "reject"] * 10
    outcomes = await asyncio.gather(
        *(outcome_of(decide(database, project_id, asked.id, choice, by=f"key_{n}")) for n, choice in enumerate(choices))
    )
    events = [data for kind, data in await log(database, task_id) if kind == "approval.decided"]
    assert len(events) == 1
    assert len(await signals(database, task_id)) == 1
    winner = "approve" if events[0]["decision"] == "approved" else "reject"
    # Who says the same is answered alike; who says the opposite is told.
    assert sorted(outcomes) == ["approval_decided"] * 10 + ["done"] * 10
    assert {outcome for outcome, choice in zip(outcomes, choices, strict=True) if choice == winner} == {"done"}


async def test_another_decision_is_told_who_was_first_and_when(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    (asked,) = await ask(database, task_id)
    first = await decide(database, project_id, asked.id, "reject", note="no")
    again = await decide(database, project_id, asked.id, "reject", note="really no")
    assert (again.note, again.decided_at) == ("no", first.decided_at)
    with pytest.raises(Conflict, match=r"was rejected by key_0 at 20.*cannot be approved any more"):
        await decide(database, project_id, asked.id, "approve")


async def test_the_same_decision_with_another_change_is_refused(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    (asked,) = await ask(database, task_id)
    await decide(database, project_id, asked.id, "approve", edited={"command": "a"})
    await decide(database, project_id, asked.id, "approve", edited={"command": "a"})
    await decide(database, project_id, asked.id, "approve")
    with pytest.raises(Conflict, match="cannot be changed any more"):
        await decide(database, project_id, asked.id, "approve", edited={"command": "b"})


async def test_a_decision_repeated_under_its_key_is_the_first_one(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    (asked,) = await ask(database, task_id)
    for _ in range(3):
        decided = await decide(database, project_id, asked.id, "approve", idempotency_key="k")
        assert decided.state == "approved"
    with pytest.raises(Conflict) as refused:
        await decide(database, project_id, asked.id, "reject", idempotency_key="k")
    assert refused.value.code == "idempotency_key_reused"


async def test_a_decision_and_a_message_under_one_key_at_once(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    (approval,) = await ask(database, task_id)
    async with database.transaction() as session:
        await lock_task(session, task_id, project_id=project_id)
        decision = asyncio.create_task(
            outcome_of(decide(database, project_id, approval.id, "approve", idempotency_key="k"))
        )
        await held_up(database, await session.scalar(sa.func.pg_backend_pid()))
        body = SendMessage(text="Wait.")
        sent = await steering.send(session, project_id, task_id, body, author=KEY, key="k")
    assert sent.replayed is False
    assert await decision == "idempotency_key_reused"


async def test_what_cannot_be_meant_is_refused(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    (asked,) = await ask(database, task_id)
    with pytest.raises(InvalidInput, match="only with approve"):
        await decide(database, project_id, asked.id, "reject", edited={"command": "a"})
    with pytest.raises(InvalidInput, match="NUL"):
        await decide(database, project_id, asked.id, "approve", edited={"command": "a", "b": ["a", {"b": "\x00"}]})
    with pytest.raises(NotFound):
        await decide(database, await make_project(database), asked.id, "approve")
    assert await waiting_for(database, task_id) == [asked.id]


@pytest.mark.parametrize("on_expiry", ["approve", "reject"])
async def test_nobody_decided(database: Database, on_expiry: str) -> None:
    project_id, task_id = await make_asking(database, on_expiry=on_expiry)
    (asked,) = await ask(database, task_id)
    assert [each.state for each in await settle(database, task_id, asked.id)] == ["pending"]
    await overdue(database, asked.id)
    # Too late even before the run has noticed.
    with pytest.raises(Conflict) as late:
        await decide(database, project_id, asked.id, "approve")
    assert late.value.code == "approval_expired"
    for _ in range(2):
        assert [each.state for each in await settle(database, task_id, asked.id)] == ["expired"]
    with pytest.raises(
        Conflict, match=f"was {'approved' if on_expiry == 'approve' else 'rejected'}, as the task's policy"
    ):
        await decide(database, project_id, asked.id, "reject")
    kinds = await log(database, task_id)
    assert [kind for kind, _ in kinds] == ["approval.requested", "approval.decided"]
    assert kinds[-1][1]["decision"] == "expired"
    assert kinds[-1][1]["outcome"] == ("approved" if on_expiry == "approve" else "rejected")
    assert await waiting_for(database, task_id) == []


async def test_what_waits_too_long_is_escalated_once_and_can_still_be_decided(database: Database) -> None:
    project_id, task_id = await make_asking(database, escalate_after_s=5)
    (asked,) = await ask(database, task_id)
    await overdue(database, asked.id, "escalate_at")
    before = counted("escalated")
    for _ in range(2):
        (standing,) = await settle(database, task_id, asked.id)
        assert standing.state == "pending"
        assert standing.escalated_at is not None
    assert counted("escalated") - before == 1
    async with database.transaction() as session:
        found, _ = await service.page(session, project_id, ApprovalFilter(escalated=True))
        assert [each.id for each in found] == [asked.id]
    await decide(database, project_id, asked.id, "approve")
    kinds = [kind for kind, _ in await log(database, task_id)]
    assert kinds == ["approval.requested", "approval.escalated", "approval.decided"]


async def test_a_cancelled_task_waits_for_nobody(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    first, second = await ask(database, task_id, "a", "b")
    await decide(database, project_id, first.id, "approve")
    async with database.transaction() as session:
        cancelled = await tasks.cancel(session, project_id, task_id)
        assert cancelled.waiting_for == []
    with pytest.raises(Conflict, match="the task was cancelled") as late:
        await decide(database, project_id, second.id, "approve")
    assert late.value.code == "approval_withdrawn"
    # What a step asks for while the cancellation is on its way cannot be decided either.
    (third,) = await ask(database, task_id, "c")
    assert await outcome_of(decide(database, project_id, third.id, "approve")) == "approval_withdrawn"
    async with database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.CANCELLED)
    decisions = [data["decision"] for kind, data in await log(database, task_id) if kind == "approval.decided"]
    assert decisions == ["approved", "withdrawn", "withdrawn"]
    assert [kind for kind, _ in await log(database, task_id)][-1] == "task.cancelled"


async def test_the_end_of_a_task_withdraws_what_waits(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    (asked,) = await ask(database, task_id)
    async with database.transaction() as session:
        await lifecycle.transition(session, task_id, TaskState.FAILED)
    with pytest.raises(Conflict, match="the task has ended"):
        await decide(database, project_id, asked.id, "reject")
    assert await waiting_for(database, task_id) == []


async def test_a_rewind_withdraws_what_waits(database: Database) -> None:
    project_id, task_id = await make_asking(database)
    (asked,) = await ask(database, task_id)
    async with database.transaction() as session:
        task = await lock_task(session, task_id)
        assert await withdraw(session, task, "rewound") == 1
        assert await withdraw(session, task, "rewound") == 0
    assert [each.state for each in await settle(database, task_id, asked.id)] == ["withdrawn"]
    with pytest.raises(Conflict, match="was rewound"):
        await decide(database, project_id, asked.id, "approve")


async def test_decision_expiry_and_cancellation_at_once_leave_one_outcome(database: Database) -> None:
    """Whichever comes first, the log, the row, the signal and the answers tell the same."""

    async def cancel(project_id: str, task_id: str) -> None:
        async with database.transaction() as session:
            await tasks.cancel(session, project_id, task_id)

    for _ in range(12):
        project_id, task_id = await make_asking(database, expires_after_s=1)
        (asked,) = await ask(database, task_id)
        assert asked.expires_at is not None
        # So close to its expiry that each of the three may come first.
        async with database.transaction() as session:
            soon = now() + timedelta(milliseconds=8)
            await session.execute(sa.update(Approval).where(Approval.id == asked.id).values(expires_at=soon))
        results = await asyncio.gather(
            outcome_of(decide(database, project_id, asked.id, "approve")),
            settle(database, task_id, asked.id),
            cancel(project_id, task_id),
            settle(database, task_id, asked.id),
        )
        events = [data for kind, data in await log(database, task_id) if kind == "approval.decided"]
        assert len(events) == 1
        async with database.transaction() as session:
            state = (await session.get_one(Approval, asked.id)).state
        assert events[0]["decision"] == state
        assert (results[0] == "done") == (state == "approved")
        assert (["decided", asked.id] in await signals(database, task_id)) == (state == "approved")
        assert await waiting_for(database, task_id) == []
        assert state in {"approved", "expired", "withdrawn"}
