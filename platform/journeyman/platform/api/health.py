"""Unversioned addresses: is the process alive, is it ready, what does it measure, and what do its siblings need to know."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final, Literal

import sqlalchemy as sa
from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel

from journeyman.platform.api.dependencies import InternalDep, ResourcesDep
from journeyman.platform.api.resources import Resources
from journeyman.platform.approvals.repository import pending_by_kind
from journeyman.platform.inference.models import LedgerEntry
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.metrics import APPROVALS_PENDING, LEDGER_AMBIGUOUS, TASKS, TASKS_PAUSED, metrics_page
from journeyman.platform.outbox import repository as outbox
from journeyman.platform.tasks.contract import PAUSE_REASONS, TaskState
from journeyman.platform.tasks.models import Task

CHECK_TIMEOUT_S: Final = 2.0

router = APIRouter()


class Check(BaseModel):
    ok: bool
    detail: str | None


class Health(BaseModel):
    status: Literal["ok"]


class Readiness(BaseModel):
    """``degraded``: requests are answered and tasks accepted, but none is started until Temporal is back."""

    status: Literal["ready", "degraded"]
    checks: dict[str, Check]


class InternalStatus(BaseModel):
    """For ``journeyman status``."""

    version: str
    engine: Literal["replay", "model"]
    streams: int
    outbox_pending: int
    outbox_lag_s: float
    listening: bool
    """Whether the notification connection stands; without it, readers look every few seconds."""
    replay_problems: list[str]


@router.get("/healthz", tags=["health"])
async def healthz() -> Health:
    """Whether the process answers at all."""
    return Health(status="ok")


@router.get("/readyz", tags=["health"])
async def readyz(resources: ResourcesDep) -> Readiness:
    """Whether requests can be served. 503 while PostgreSQL or the object store is away."""
    names: tuple[str, ...] = ("database", "object_store", "temporal")
    results = await asyncio.gather(
        _check(lambda: _ask_database(resources)),
        _check(resources.object_store.check),
        _check(lambda: _ask_temporal(resources)),
    )
    checks: dict[str, Check] = dict(zip(names, results, strict=True))
    down = [name for name in ("database", "object_store") if not checks[name].ok]
    if down:
        raise Unavailable(
            f"Not ready: {', '.join(down)} does not answer.",
            code="not_ready",
            checks={name: check.model_dump() for name, check in checks.items()},
        )
    return Readiness(status="ready" if checks["temporal"].ok else "degraded", checks=checks)


@router.get("/metrics", tags=["health"], response_class=Response)
async def metrics(resources: ResourcesDep) -> Response:
    """Prometheus metrics of this process, and the numbers of tasks by state and of approvals that wait."""
    await _check(lambda: _count(resources))
    body, media_type = metrics_page()
    return Response(body, media_type=media_type)


@router.get("/internal/status", include_in_schema=False, dependencies=[InternalDep])
async def internal_status(resources: ResourcesDep) -> InternalStatus:
    async with resources.database.transaction() as session:
        pending, lag_s = await outbox.pending(session)
    return InternalStatus(
        version=version("journeyman"),
        engine=resources.engine,
        streams=resources.feed.followers,
        outbox_pending=pending,
        outbox_lag_s=lag_s,
        listening=resources.notifications.connected.is_set(),
        replay_problems=resources.catalog.problems,
    )


async def _check(ask: Callable[[], Awaitable[Any]]) -> Check:
    try:
        await asyncio.wait_for(ask(), CHECK_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
        # The kind alone: messages of drivers contain addresses and user names, and anybody may ask.
        return Check(ok=False, detail=type(error).__name__)
    return Check(ok=True, detail=None)


async def _ask_database(resources: Resources) -> None:
    async with resources.database.transaction() as session:
        await session.execute(sa.text("SELECT 1"))


async def _ask_temporal(resources: Resources) -> None:
    await resources.temporal.service_client.check_health(timeout=timedelta(seconds=1))


async def _count(resources: Resources) -> None:
    async with resources.database.transaction() as session:
        rows = await session.execute(sa.select(Task.state, sa.func.count().label("tasks")).group_by(Task.state))
        counts = {row.state: row.tasks for row in rows}
        pending = await pending_by_kind(session)
        paused = await session.execute(
            sa.select(Task.paused_reason, sa.func.count().label("tasks"))
            .where(Task.paused_reason.is_not(None))
            .group_by(Task.paused_reason)
        )
        waiting = {row.paused_reason: row.tasks for row in paused}
        ambiguous = await session.scalar(
            sa.select(sa.func.count()).select_from(LedgerEntry).where(LedgerEntry.state == "ambiguous")
        )
    for reason in PAUSE_REASONS:
        TASKS_PAUSED.labels(reason).set(waiting.get(reason, 0))
    LEDGER_AMBIGUOUS.set(ambiguous or 0)
    for kind in ("plan", "tool_call"):
        APPROVALS_PENDING.labels(kind).set(pending.get(kind, 0))
    for state in TaskState:
        TASKS.labels(state.value).set(counts.get(state.value, 0))
