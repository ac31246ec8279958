"""Rewinds, and what the store holds of a checkpoint."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, distinct_on
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from journeyman.agents.roles import Role
from journeyman.platform.branching.history import PLANS, TOLD, Told, fold
from journeyman.platform.branching.models import Rewind
from journeyman.platform.branching.restore import Conversation, Cut, Kept, Point
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.events.models import Event
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Json
from journeyman.platform.ledger.models import Account
from journeyman.platform.ledger.wall_time import worked_seconds
from journeyman.platform.plans.models import Plan
from journeyman.platform.steering.models import PersonMessage
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads.models import Message, Thread


async def add_rewind(session: AsyncSession, rewind: Rewind) -> None:
    session.add(rewind)
    await session.flush()


async def get_rewind(session: AsyncSession, task_id: str, rewind_id: str) -> Rewind | None:
    """The task's rewind."""
    return await session.scalar(sa.select(Rewind).where(Rewind.id == rewind_id, Rewind.task_id == task_id))


async def rewinds(session: AsyncSession, task_id: str, *, limit: int) -> Sequence[Rewind]:
    """The newest rewinds of the task, the newest first."""
    rows = await session.scalars(
        sa.select(Rewind)
        .where(Rewind.task_id == task_id)
        .order_by(Rewind.requested_at.desc(), Rewind.id.desc())
        .limit(limit)
    )
    return rows.all()


async def point(session: AsyncSession, checkpoint: Checkpoint) -> Point:
    """The checkpoint with what decides how its task goes on from it."""
    task_id = checkpoint.task_id
    conversations = await _conversations(session, checkpoint)
    own = await _own_cuts(session, checkpoint)
    history = fold(await _told(session, checkpoint))
    plans = await session.execute(
        sa.select(
            Plan.revision, sa.func.jsonb_path_query_array(Plan.subtasks, sa.text("'$[*].id'::jsonpath")).label("ids")
        ).where(Plan.task_id == task_id)
    )
    subtasks = {row.revision: list(row.ids) for row in plans}
    numbers = await session.scalar(sa.select(sa.func.max(Thread.revision)).where(Thread.task_id == task_id))
    return Point(
        thread_id=checkpoint.thread_id,
        plan_revision=checkpoint.plan_revision,
        conversations=conversations,
        own=own,
        history=history,
        subtasks={revision: subtasks[revision] for revision in history.revisions},
        taken=frozenset(subtasks),
        last_revision=max(numbers or 0, *subtasks, checkpoint.plan_revision) if subtasks else max(numbers or 0, 0),
        conflicts=await _conflicts(session, conversations, own),
    )


async def _conversations(session: AsyncSession, checkpoint: Checkpoint) -> list[Conversation]:
    rows = await session.execute(
        sa.select(Thread.id, Thread.role, Thread.subtask_id, Thread.revision, Thread.attempt, Thread.origin)
        .where(Thread.id.in_(checkpoint.thread_cursors))
        .order_by(Thread.id)
    )
    return [Conversation(*row) for row in rows]


async def _own_cuts(session: AsyncSession, checkpoint: Checkpoint) -> dict[str, Cut]:
    """The last checkpoint of each of its threads, up to and with this one."""
    rows = await session.scalars(
        sa.select(Checkpoint)
        .ext(distinct_on(Checkpoint.thread_id))
        .where(
            Checkpoint.task_id == checkpoint.task_id,
            Checkpoint.thread_id.in_(checkpoint.thread_cursors),
            Checkpoint.event_seq <= checkpoint.event_seq,
        )
        .order_by(Checkpoint.thread_id, Checkpoint.event_seq.desc())
    )
    cuts: dict[str, Cut] = {}
    for row in rows:
        assert row.thread_id is not None
        cuts[row.thread_id] = Cut(
            thread_id=row.thread_id,
            step=int(row.step_key.rpartition(":")[2]),
            submitted=row.submitted,
            cursor=row.thread_cursors[row.thread_id],
            snapshot=row.snapshot,
            state=row.thread_state,
            order=row.event_seq,
        )
    return cuts


async def _told(session: AsyncSession, checkpoint: Checkpoint) -> list[Told]:
    # Plans and messages are long, and only their numbers are wanted.
    data = sa.case(
        (Event.type.in_(PLANS), sa.func.jsonb_build_object("revision", Event.data["revision"])),
        else_=Event.data.op("-", return_type=JSONB())(sa.literal("text", sa.Text)),
    )
    rows = await session.execute(
        sa.select(Event.type, Event.subtask_id, data.label("data"))
        .where(
            Event.task_id == checkpoint.task_id,
            Event.seq <= checkpoint.event_seq,
            Event.type.in_(sorted(TOLD)),
        )
        .order_by(Event.seq)
    )
    return [Told(row.type, row.subtask_id, row.data) for row in rows]


async def _conflicts(
    session: AsyncSession, conversations: Sequence[Conversation], own: Mapping[str, Cut]
) -> dict[str, int]:
    """How often each Coder was told of a merge conflict, up to where its thread is cut."""
    coders = [one for one in conversations if one.role == Role.CODER]
    cursors = {one.id: own[one.id].cursor if one.id in own else (one.origin or {}).get("cursor", 0) for one in coders}
    if not cursors:
        return {}
    limits = sa.values(sa.column("id", sa.Text), sa.column("cursor", sa.BigInteger), name="cut").data(
        list(cursors.items())
    )
    rows = await session.execute(
        sa.select(Message.thread_id, sa.func.count().label("told"))
        .join(limits, sa.and_(limits.c.id == Message.thread_id, Message.seq <= limits.c.cursor))
        .where(Message.step_key.like("%:conflict:%"))
        .group_by(Message.thread_id)
    )
    return {row.thread_id: row.told for row in rows}


async def summaries(session: AsyncSession, coders: Sequence[Kept]) -> dict[str, str]:
    """What each Coder said of its work when it last handed it over, by thread."""
    if not coders:
        return {}
    limits = sa.values(sa.column("id", sa.Text), sa.column("cursor", sa.BigInteger), name="cut").data(
        [(coder.id, coder.cut.cursor) for coder in coders]
    )
    rows = await session.execute(
        sa.select(Message.thread_id, Message.body)
        .join(limits, sa.and_(limits.c.id == Message.thread_id, Message.seq <= limits.c.cursor))
        .where(
            Message.step_key.like(f"%{step_keys.ANSWER}"),
            sa.func.position(sa.cast(b'"submit_work"', sa.LargeBinary).op("in")(Message.body)) > 0,
        )
        .order_by(Message.thread_id, Message.seq)
    )
    found: dict[str, str] = {}
    for thread_id, body in rows:
        summary = _summary(json.loads(body))
        if summary is not None:
            found[thread_id] = summary
    return found


def _summary(message: dict[str, Any]) -> str | None:
    for call in message.get("tool_calls") or ():
        if call["function"]["name"] == "submit_work":
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:
                continue
            if isinstance(arguments, dict) and isinstance(arguments.get("summary"), str):
                return str(arguments["summary"])
    return None


@dataclass(frozen=True, slots=True)
class OpenThread:
    """A thread that is not history."""

    id: str
    role: str
    subtask_id: str | None
    revision: int
    attempt: int
    snapshot: str | None
    last_seq: int

    @property
    def identity(self) -> tuple[str, str | None, int, int]:
        """The same for all copies of a conversation."""
        return self.role, self.subtask_id, self.revision, self.attempt


async def open_threads(session: AsyncSession, task_id: str) -> list[OpenThread]:
    """The task's threads of the present epoch, in the order in which they were opened."""
    rows = await session.execute(
        sa.select(
            Thread.id,
            Thread.role,
            Thread.subtask_id,
            Thread.revision,
            Thread.attempt,
            Thread.snapshot,
            Thread.last_seq,
        )
        .where(Thread.task_id == task_id, Thread.superseded_at.is_(None))
        .order_by(Thread.created_at, Thread.id)
    )
    return [OpenThread(*row) for row in rows]


async def common_beginning(session: AsyncSession, thread_id: str, other_id: str) -> int:
    """How many messages two threads have in common from their first on."""
    one, other = aliased(Message), aliased(Message)
    differs = await session.scalar(
        sa.select(sa.func.min(one.seq))
        .select_from(one)
        .outerjoin(other, sa.and_(other.thread_id == other_id, other.seq == one.seq))
        .where(one.thread_id == thread_id, one.body.is_distinct_from(other.body))
    )
    if differs is not None:
        return int(differs) - 1
    return await session.scalar(sa.select(Thread.last_seq).where(Thread.id == thread_id)) or 0


async def messages_after(session: AsyncSession, task_id: str, known: Collection[int]) -> Sequence[PersonMessage]:
    """What people said and agents have read since, and is still in force."""
    rows = await session.scalars(
        sa.select(PersonMessage)
        .where(
            PersonMessage.task_id == task_id,
            PersonMessage.seq.not_in(known),
            PersonMessage.state != "received",
            PersonMessage.set_aside_at.is_(None),
        )
        .order_by(PersonMessage.seq)
    )
    return rows.all()


async def spent(session: AsyncSession, task: Task) -> Json:
    """What the task has used itself, as its checkpoints note it: ``{tokens, cost_usd, steps, wall_s}``."""
    account = await session.scalar(sa.select(Account).where(Account.scope == task.id))
    return {
        "tokens": account.tokens if account is not None else 0,
        "cost_usd": str(account.cost_usd) if account is not None else "0",
        "steps": account.steps if account is not None else 0,
        "wall_s": int(worked_seconds(task, now())),
    }


async def pending_rewind(session: AsyncSession, task_id: str) -> str | None:
    """The oldest rewind of the task that was asked for and is not applied."""
    return await session.scalar(
        sa.select(Rewind.id)
        .where(Rewind.task_id == task_id, Rewind.applied_at.is_(None))
        .order_by(Rewind.requested_at, Rewind.id)
        .limit(1)
    )
