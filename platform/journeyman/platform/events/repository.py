"""Reading the event log."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import aliased

from journeyman.platform.events.models import Event
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Json
from journeyman.platform.tasks.models import Task


class EventRow(NamedTuple):
    """An event as it is read for streams: without the weight of a mapped object."""

    task_id: str
    seq: int
    id: str
    type: str
    time: datetime
    thread_id: str | None
    subtask_id: str | None
    data: Json


async def after(
    session: AsyncSession, task_id: str, seq: int, *, limit: int, types: Sequence[str] = ()
) -> Sequence[Event]:
    """At most ``limit`` events behind ``seq``, in order."""
    statement = sa.select(Event).where(Event.task_id == task_id, Event.seq > seq).order_by(Event.seq).limit(limit)
    if types:
        statement = statement.where(Event.type.in_(types))
    return (await session.scalars(statement)).all()


async def heads(connection: AsyncConnection, task_ids: Sequence[str]) -> dict[str, tuple[int, bool]]:
    """By task: the newest ``seq``, and whether the log is closed: the task has ended and nothing can follow."""
    rows = await connection.execute(
        sa.select(Task.id, Task.last_seq, Task.finished_at.is_not(None).label("closed")).where(Task.id.in_(task_ids))
    )
    return {row.id: (row.last_seq, row.closed) for row in rows}


def _behind() -> sa.Select[tuple[str, int, str, str, datetime, str | None, str | None, Json]]:
    positions = (
        sa.func.unnest(sa.bindparam("task_ids", type_=ARRAY(sa.Text)), sa.bindparam("seqs", type_=ARRAY(sa.BigInteger)))
        .table_valued(sa.column("task_id", sa.Text), sa.column("seq", sa.BigInteger))
        .render_derived("positions")
    )
    events = (
        sa.select(
            Event.task_id, Event.seq, Event.id, Event.type, Event.time, Event.thread_id, Event.subtask_id, Event.data
        )
        .where(Event.task_id == positions.c.task_id, Event.seq > positions.c.seq)
        .order_by(Event.seq)
        .limit(sa.bindparam("limit", type_=sa.Integer))
        .lateral("events_behind")
    )
    columns = (events.c[name] for name in EventRow._fields)
    return sa.select(*columns).select_from(positions).join(events, sa.true())


_BEHIND = _behind()


async def behind(connection: AsyncConnection, positions: Mapping[str, int], *, limit: int) -> dict[str, list[EventRow]]:
    """For each task, at most ``limit`` events behind its position, in order; tasks without any are left out."""
    rows = await connection.execute(
        _BEHIND, {"task_ids": list(positions), "seqs": list(positions.values()), "limit": limit}
    )
    found: dict[str, list[EventRow]] = {}
    for row in rows:
        found.setdefault(row.task_id, []).append(EventRow._make(row))
    for events in found.values():
        events.sort(key=lambda event: event.seq)
    return found


async def open_calls(session: AsyncSession, task_id: str) -> Sequence[Event]:
    """The events of tool calls that have no result yet, in their order."""
    call, result = aliased(Event), aliased(Event)
    has_result = sa.exists().where(
        result.task_id == task_id,
        result.type == EventType.AGENT_TOOL_RESULT,
        result.data["call_id"].as_string() == call.data["call_id"].as_string(),
    )
    calls = await session.scalars(
        sa.select(call)
        .where(call.task_id == task_id, call.type == EventType.AGENT_TOOL_CALL, ~has_result)
        .order_by(call.seq)
    )
    return calls.all()
