"""The REST application: routes, middleware, and the lifespan that builds what they need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from temporalio.client import Client

from journeyman.platform import tables
from journeyman.platform.api import health, reference
from journeyman.platform.approvals.endpoints import plan_router as plan_decisions
from journeyman.platform.approvals.endpoints import router as approvals
from journeyman.platform.artifacts.endpoints import router as artifacts
from journeyman.platform.board.endpoints import router as board
from journeyman.platform.branching.endpoints import router as branching
from journeyman.platform.budgets.endpoints import router as budgets
from journeyman.platform.budgets.renewal import BudgetRenewal
from journeyman.platform.budgets.warnings import BudgetWarnings
from journeyman.platform.checkpoints.endpoints import router as checkpoints
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.dispatch.dispatcher import OutboxDispatcher
from journeyman.platform.events.endpoints import router as events
from journeyman.platform.events.log import CHANNEL as EVENTS_CHANNEL
from journeyman.platform.events.stream import EventFeed
from journeyman.platform.http import problems
from journeyman.platform.http.dependencies import Resources
from journeyman.platform.http.requests import BodyLimit, JsonLimit, RequestContext
from journeyman.platform.inference.endpoints import router as inference
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.notifications import Notifications
from journeyman.platform.kit.object_store import ObjectStore
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import TelemetryMiddleware, temporal_plugins
from journeyman.platform.kit.temporal import connect
from journeyman.platform.ledger.pricing import PriceTable
from journeyman.platform.ledger.service import LedgerService
from journeyman.platform.memory.endpoints import router as memory
from journeyman.platform.memory.repository import CHANNEL as MEMORY_CHANNEL
from journeyman.platform.memory.service import MemoryService, memory_service
from journeyman.platform.outbox.service import CHANNEL as OUTBOX_CHANNEL
from journeyman.platform.plans.endpoints import router as plans
from journeyman.platform.recovery.service import TaskRecovery
from journeyman.platform.replay.catalog import ReplayCatalog
from journeyman.platform.steering.endpoints import router as steering
from journeyman.platform.submission.endpoints import router as tasks
from journeyman.platform.tenancy.endpoints import router as tenancy
from journeyman.platform.tenancy.service import bootstrap
from journeyman.platform.uploads.endpoints import router as uploads
from journeyman.platform.uploads.service import UploadService
from journeyman.platform.usage.endpoints import router as usage

_FORM_OVERHEAD: Final = 64 * 1024
_log = get_logger(__name__)


class Api(FastAPI):
    """FastAPI, with the problem document in the OpenAPI file: no route returns it, and all may answer with it."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        schemas = document["components"]["schemas"]
        if "Problem" not in schemas:
            problem = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= problem.pop("$defs", {})
            schemas["Problem"] = problem
        return document


def create_app(settings: Settings) -> FastAPI:
    """The application. Nothing is connected before its lifespan begins."""
    app = Api(
        title="Journeyman",
        version=version("journeyman"),
        summary="Teams of AI agents carry long jobs to a verified end.",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.settings = settings
    v1 = APIRouter(prefix="/v1", responses=problems.RESPONSES)
    for router in (
        tasks,
        plans,
        plan_decisions,
        approvals,
        board,
        events,
        steering,
        checkpoints,
        branching,
        artifacts,
        usage,
        inference,
        budgets,
        memory,
        uploads,
        tenancy,
    ):
        v1.include_router(router)
    app.include_router(v1)
    app.include_router(health.router)
    app.include_router(reference.router)
    problems.install(app)
    # The last one added is the outermost.
    app.add_middleware(JsonLimit, streamed=("/v1/uploads",))
    app.add_middleware(BodyLimit, larger={"/v1/uploads": settings.upload_max_bytes + _FORM_OVERHEAD})
    app.add_middleware(RequestContext)
    app.add_middleware(TelemetryMiddleware, service="api")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    async with AsyncExitStack() as stack:
        app.state.resources = resources = await build_resources(settings, stack)
        await _bootstrap(resources[Database], settings)
        recovery = TaskRecovery(resources[Database], resources[Client], sandbox_queue=settings.sandbox_queue)
        background = [
            asyncio.create_task(resources[Notifications].run(), name="notifications"),
            asyncio.create_task(resources[OutboxDispatcher].run(), name="outbox"),
            asyncio.create_task(recovery.run(), name="recovery"),
            asyncio.create_task(BudgetRenewal(resources[Database]).run(), name="budget-renewal"),
            asyncio.create_task(resources[MemoryService].index.run(), name="memory"),
        ]
        try:
            yield
        finally:
            await resources[EventFeed].close()
            for task in background:
                task.cancel()
            for task in background:
                with suppress(asyncio.CancelledError):
                    await task


async def build_resources(settings: Settings, stack: AsyncExitStack) -> Resources:
    """All that the process needs, closed with the stack. Connects to nothing yet."""
    resources = Resources()
    resources.add(Settings, settings)
    # Foreign keys are resolved by name: every table must be known before the first statement.
    assert tables.metadata.sorted_tables
    engine = create_engine(
        settings.database_url, pool_size=settings.database_pool_size, application_name="journeyman-api"
    )
    database = resources.add(Database, Database(engine))
    stack.push_async_callback(database.close)
    object_store = S3ObjectStore.from_settings(settings)
    resources.add(ObjectStore, object_store)  # type: ignore[type-abstract]  # the type is a key here, never called
    snapshots = resources.add(SnapshotStore, SnapshotStore(object_store))
    resources.add(UploadService, UploadService(database, snapshots, max_bytes=settings.upload_max_bytes))
    temporal = await connect(settings, object_store, lazy=True, plugins=temporal_plugins(settings))
    resources.add(Client, temporal)
    feed = resources.add(EventFeed, EventFeed(database))
    dispatcher = resources.add(
        OutboxDispatcher, OutboxDispatcher(database, temporal, sandbox_queue=settings.sandbox_queue)
    )
    memories = resources.add(MemoryService, memory_service(settings, database, stack))
    notifications = resources.add(Notifications, Notifications(engine))
    notifications.on(EVENTS_CHANNEL, feed.notified)
    notifications.on(OUTBOX_CHANNEL, dispatcher.notified)
    notifications.on(MEMORY_CHANNEL, memories.index.notified)
    prices = PriceTable.from_settings(settings)
    resources.add(LedgerService, LedgerService(database, prices))
    resources.add(BudgetWarnings, BudgetWarnings.from_settings(settings, prices))
    resources.add(ReplayCatalog, ReplayCatalog.from_settings(settings))
    return resources


async def _bootstrap(database: Database, settings: Settings) -> None:
    """Make the first key, as soon as PostgreSQL answers: a stack's parts start in any order."""
    delay = 0.1
    while True:
        try:
            await bootstrap(database, settings.data_dir)
        except Exception as error:
            if not database_unavailable(error):
                raise
            _log.warning("api.waiting_for_database", error=type(error).__name__)
        else:
            return
        await asyncio.sleep(delay)
        delay = min(delay * 2, 2.0)
