"""The clock of a task: it runs while the task can work, and stands while it waits for somebody.

It stands while the task is queued, while it is paused for whatever reason, and while an approval is waited for. Whoever
changes one of these through the mapped class moves the clock with it: the listener below sees every such change.
"""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import insert

from journeyman.platform.kit.clock import now
from journeyman.platform.ledger.models import Account
from journeyman.platform.tasks.contract import TaskState
from journeyman.platform.tasks.models import Task

_WORKING: Final = frozenset({TaskState.PREPARING, TaskState.PLANNING, TaskState.RUNNING, TaskState.VERIFYING})
_WATCHED: Final = ("state", "paused_reason", "waiting_for")
_PLACES: Final = Decimal("0.001")


def worked_seconds(task: Task, moment: datetime) -> Decimal:
    """Seconds that the task has worked until then."""
    worked = task.worked_s or Decimal(0)
    if task.working_since is None:
        return worked
    return worked + _seconds(task.working_since, moment)


def runs(task: Task) -> bool:
    """Whether the clock has to run."""
    return task.state in _WORKING and task.paused_reason is None and not task.waiting_for


@event.listens_for(Task, "before_update")
def _move_clock(_mapper: Any, connection: sa.Connection, task: Task) -> None:
    state = sa.inspect(task)
    if not any(state.attrs[name].history.has_changes() for name in _WATCHED):
        return
    moment = now()
    if runs(task):
        if task.working_since is None:
            task.working_since = moment
        return
    since = task.working_since
    if since is None:
        return
    task.worked_s = worked_seconds(task, moment)
    task.working_since = None
    for day, seconds in _by_day(since, moment):
        row = insert(Account).values(
            scope=task.project_id,
            day=day,
            tokens=0,
            cost_usd=0,
            steps=0,
            wall_s=seconds,
            reserved_tokens=0,
            reserved_cost_usd=0,
        )
        connection.execute(
            row.on_conflict_do_update(
                index_elements=[Account.scope, Account.day], set_={"wall_s": Account.wall_s + row.excluded.wall_s}
            )
        )


def _by_day(start: datetime, end: datetime) -> Iterator[tuple[date, Decimal]]:
    """The stretch cut at midnight, UTC."""
    while start < end:
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        yield start.date(), _seconds(start, min(midnight, end))
        start = midnight


def _seconds(start: datetime, end: datetime) -> Decimal:
    return max(Decimal(0), Decimal(str((end - start).total_seconds())).quantize(_PLACES))
