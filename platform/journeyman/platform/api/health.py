"""Unversioned addresses: is the process alive, is it ready, and what does it measure."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic import BaseModel
from temporalio.client import Client

from journeyman.platform.approvals.repository import pending_by_kind
from journeyman.platform.http.dependencies import DatabaseDep, resource
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.metrics import APPROVALS_PENDING, LEDGER_AMBIGUOUS, TASKS, TASKS_PAUSED, metrics_page
from journeyman.platform.kit.object_store import ObjectStore
from journeyman.platform.ledger.service import LedgerService
from journeyman.platform.tasks import repository as tasks
from journeyman.platform.tasks.contract import PAUSE_REASONS, TaskState

CHECK_TIMEOUT_S: Final = 2.0

router = APIRouter()

ObjectStoreDep = Annotated[ObjectStore, Depends(resource(ObjectStore))]
TemporalDep = Annotated[Client, Depends(resource(Client))]
LedgerDep = Annotated[LedgerService, Depends(resource(LedgerService))]


class Check(BaseModel):
    """Whether a part answered."""

    ok: bool
    detail: str | None
    """The kind of error; null when there was none."""


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """``degraded``: requests are answered and tasks accepted, but none is started until Temporal is back."""

    status: Literal["ready", "degraded"]
    checks: dict[str, Check]


@router.get("/healthz", tags=["health"])
async def healthz() -> Health:
    """Whether the process answers at all."""
    return Health(status="ok")


@router.get("/readyz", tags=["health"])
async def readyz(database: DatabaseDep, object_store: ObjectStoreDep, temporal: TemporalDep) -> Readiness:
    """Whether requests can be served. 503 while PostgreSQL or the object store is away."""
    names: tuple[str, ...] = ("database", "object_store", "temporal")
    results = await asyncio.gather(
        _check(lambda: _ask_database(database)),
        _check(object_store.check),
        _check(lambda: _ask_temporal(temporal)),
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
async def metrics(database: DatabaseDep, ledger: LedgerDep) -> Response:
    """Prometheus metrics of this process, and the numbers of tasks by state and of approvals that wait."""
    await _check(lambda: _count(database, ledger))
    body, media_type = metrics_page()
    return Response(body, media_type=media_type)


async def _check(ask: Callable[[], Awaitable[Any]]) -> Check:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await ask()
    except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
        # The kind alone: messages of drivers contain addresses and user names, and anybody may ask.
        return Check(ok=False, detail=type(error).__name__)
    return Check(ok=True, detail=None)


async def _ask_database(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(sa.text("SELECT 1"))


async def _ask_temporal(temporal: Client) -> None:
    await temporal.service_client.check_health(timeout=timedelta(seconds=1))


async def _count(database: Database, ledger: LedgerService) -> None:
    async with database.transaction() as session:
        counts = await tasks.count_by_state(session)
        waiting = await tasks.count_by_pause(session)
        pending = await pending_by_kind(session)
    ambiguous = await ledger.ambiguous_entries()
    for reason in PAUSE_REASONS:
        TASKS_PAUSED.labels(reason).set(waiting.get(reason, 0))
    LEDGER_AMBIGUOUS.set(ambiguous)
    for kind in ("plan", "tool_call"):
        APPROVALS_PENDING.labels(kind).set(pending.get(kind, 0))
    for state in TaskState:
        TASKS.labels(state.value).set(counts.get(state.value, 0))
