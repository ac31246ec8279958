"""The REST application: routes, middleware, and the lifespan that builds what they need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI

from journeyman.platform.api import health, problems, reference
from journeyman.platform.api.requests import BodyLimit, JsonLimit, RequestContext
from journeyman.platform.api.resources import Resources
from journeyman.platform.approvals.endpoints import router as approvals
from journeyman.platform.artifacts.endpoints import router as artifacts
from journeyman.platform.board.endpoints import router as board
from journeyman.platform.branching.endpoints import router as branching
from journeyman.platform.budgets.endpoints import router as budgets
from journeyman.platform.budgets.renewal import BudgetRenewal
from journeyman.platform.budgets.warnings import BudgetWarnings
from journeyman.platform.checkpoints.endpoints import router as checkpoints
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.endpoints import router as events
from journeyman.platform.events.log import CHANNEL as EVENTS_CHANNEL
from journeyman.platform.events.stream import EventFeed
from journeyman.platform.inference.endpoints import router as inference
from journeyman.platform.inference.ledger import LedgerService
from journeyman.platform.inference.pricing import PriceTable
from journeyman.platform.inference.replay.catalog import ReplayCatalog
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.notifications import Notifications
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import TelemetryMiddleware, temporal_plugins
from journeyman.platform.kit.temporal import connect
from journeyman.platform.memory.endpoints import router as memory
from journeyman.platform.memory.repository import CHANNEL as MEMORY_CHANNEL
from journeyman.platform.memory.service import memory_service
from journeyman.platform.outbox.dispatcher import OutboxDispatcher
from journeyman.platform.outbox.service import CHANNEL as OUTBOX_CHANNEL
from journeyman.platform.plans.endpoints import router as plans
from journeyman.platform.recovery.service import TaskRecovery
from journeyman.platform.steering.endpoints import router as steering
from journeyman.platform.tasks.endpoints import router as tasks
from journeyman.platform.tenancy.endpoints import router as tenancy
from journeyman.platform.tenancy.service import bootstrap
from journeyman.platform.uploads.endpoints import router as uploads
from journeyman.platform.uploads.service import UploadService

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
        approvals,
        board,
        events,
        steering,
        checkpoints,
        branching,
        artifacts,
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
        resources = await build_resources(settings, stack)
        app.state.resources = resources
        await _bootstrap(resources)
        recovery = TaskRecovery(resources.database, resources.temporal, together=settings.workers_together)
        background = [
            asyncio.create_task(resources.notifications.run(), name="notifications"),
            asyncio.create_task(resources.dispatcher.run(), name="outbox"),
            asyncio.create_task(recovery.run(), name="recovery"),
            asyncio.create_task(BudgetRenewal(resources.database).run(), name="budget-renewal"),
            asyncio.create_task(resources.memory.index.run(), name="memory"),
        ]
        try:
            yield
        finally:
            await resources.feed.close()
            for task in background:
                task.cancel()
            for task in background:
                with suppress(asyncio.CancelledError):
                    await task


async def build_resources(settings: Settings, stack: AsyncExitStack) -> Resources:
    """All that the process needs, closed with the stack. Connects to nothing yet."""
    engine = create_engine(
        settings.database_url, pool_size=settings.database_pool_size, application_name="journeyman-api"
    )
    database = Database(engine)
    stack.push_async_callback(database.close)
    object_store = S3ObjectStore.from_settings(settings)
    snapshots = SnapshotStore(object_store)
    temporal = await connect(settings, object_store, lazy=True, plugins=temporal_plugins(settings))
    feed = EventFeed(database)
    dispatcher = OutboxDispatcher(database, temporal, together=settings.workers_together)
    notifications = Notifications(engine)
    notifications.on(EVENTS_CHANNEL, feed.notified)
    notifications.on(OUTBOX_CHANNEL, dispatcher.notified)
    memories = memory_service(settings, database, stack)
    notifications.on(MEMORY_CHANNEL, memories.index.notified)
    prices = PriceTable.from_settings(settings)
    return Resources(
        settings=settings,
        database=database,
        object_store=object_store,
        snapshots=snapshots,
        temporal=temporal,
        feed=feed,
        dispatcher=dispatcher,
        notifications=notifications,
        ledger=LedgerService(database, prices),
        uploads=UploadService(database, snapshots, max_bytes=settings.upload_max_bytes),
        memory=memories,
        budget_warnings=BudgetWarnings.from_settings(settings, prices),
        catalog=ReplayCatalog.from_settings(settings),
    )


async def _bootstrap(resources: Resources) -> None:
    """Make the first key, as soon as PostgreSQL answers: a stack's parts start in any order."""
    delay = 0.1
    while True:
        try:
            await bootstrap(resources.database, resources.settings.data_dir)
        except Exception as error:
            if not database_unavailable(error):
                raise
            _log.warning("api.waiting_for_database", error=type(error).__name__)
        else:
            return
        await asyncio.sleep(delay)
        delay = min(delay * 2, 2.0)
