"""The gateway as a raw ASGI application, and how its parts are put together."""

import asyncio
import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from journeyman.platform.inference.gateway import metrics
from journeyman.platform.inference.gateway.authentication import Authentication, KeyCheck, api_key_check
from journeyman.platform.inference.gateway.calls import Exchange
from journeyman.platform.inference.gateway.routing import Routing, parse_chat, parse_embeddings
from journeyman.platform.inference.gateway.running import RunningCalls
from journeyman.platform.inference.gateway.settlement import Settlements
from journeyman.platform.inference.gateway.upstream import EngineRefused, UpstreamPool
from journeyman.platform.inference.gateway.wire import (
    ClientWatch,
    Headers,
    Receive,
    Scope,
    Send,
    headers_of,
    problem,
    read_body,
    respond,
    respond_json,
)
from journeyman.platform.inference.redaction import error_text
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.errors import InvalidInput, JourneymanError, NotFound, Unavailable
from journeyman.platform.kit.http_telemetry import TelemetryMiddleware
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.metrics import metrics_page
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import inject
from journeyman.platform.ledger.pricing import PriceTable
from journeyman.platform.ledger.service import LedgerService

_DRAIN_S: Final = 10.0
_SWEEP_EVERY_S: Final = 600.0
CHAT: Final = "/v1/chat/completions"
CANCEL: Final = "/v1/chat/completions/cancel"
EMBEDDINGS: Final = "/v1/embeddings"
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Route:
    """What the telemetry middleware reads off the scope."""

    path: str


_ROUTES: Final = {
    path: _Route(path) for path in (CHAT, CANCEL, EMBEDDINGS, "/v1/models", "/healthz", "/readyz", "/metrics")
}
_POSTED: Final = {CHAT, CANCEL, EMBEDDINGS}


class Gateway:
    """Serves ``/v1/chat/completions`` and its ``/cancel``, ``/v1/embeddings``, ``/v1/models``, ``/healthz``, ``/readyz``, ``/metrics``.

    Its pool of connections is opened and closed by the server's lifespan; the database is the caller's.
    """

    def __init__(
        self,
        database: Database,
        ledger: LedgerService,
        routing: Routing,
        authentication: Authentication,
        idle_timeout_s: float,
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._routing = routing
        self._authentication = authentication
        self._idle_timeout_s = idle_timeout_s
        self._settlements = Settlements(ledger)
        self._calls = RunningCalls(self._settlements)
        self._pool: UpstreamPool | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def start(self) -> None:
        self._pool = UpstreamPool(self._idle_timeout_s, self._routing.secrets())
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Finish what the ledger must still be told, then close the connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        await self._calls.stop(_DRAIN_S)
        await self._settlements.drain(_DRAIN_S)
        if self._pool is not None:
            await self._pool.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = _ROUTES.get(scope["path"])
        scope["route"] = route
        headers = headers_of(scope)
        request_id = headers.get("x-journeyman-request") or new_id("request")
        begun = False

        async def tracked(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            if route is None:
                raise NotFound(f"There is nothing at {scope['path']}.")
            await self._dispatch(scope["method"], route.path, headers, receive, tracked)
        except JourneymanError as error:
            if begun:
                raise
            await self._refuse(send, error, request_id)
        except Exception:
            _log.exception("gateway.failed", path=scope["path"])
            if begun:
                raise
            failure = JourneymanError("The gateway failed; its log says why.", retryable=True)
            await self._refuse(send, failure, request_id)

    async def _dispatch(self, method: str, path: str, headers: Headers, receive: Receive, send: Send) -> None:
        wanted = "POST" if path in _POSTED else "GET"
        if method != wanted:
            raise InvalidInput(f"{path} takes {wanted}, not {method}.", code="method_not_allowed")
        if path == "/healthz":
            await respond_json(send, 200, {"status": "ok"})
        elif path == "/readyz":
            await self._ready(send)
        elif path == "/metrics":
            page, content_type = metrics_page()
            await respond(send, 200, page, content_type)
        elif path == "/v1/models":
            await self._models(headers, send)
        elif path == CANCEL:
            await self._cancel(headers, receive, send)
        else:
            await self._call(path, headers, receive, send)

    async def _call(self, path: str, headers: Headers, receive: Receive, send: Send) -> None:
        data = await read_body(receive)
        received = time.perf_counter()
        assert self._pool is not None
        async with ClientWatch(receive):
            caller = await self._authentication.caller_of(headers)
            if path == EMBEDDINGS:
                exchange = Exchange(
                    kind="embedding",
                    upstream=self._routing.embeddings,
                    path="/embeddings",
                    request=parse_embeddings(data, self._routing),
                    caller=caller,
                    headers=inject(),
                    received=received,
                )
            else:
                exchange = Exchange(
                    kind="model",
                    upstream=self._routing.chat,
                    path="/chat/completions",
                    request=parse_chat(data, self._routing),
                    caller=caller,
                    headers=inject(),
                    received=received,
                    digest=hashlib.sha256(data).hexdigest() if caller.internal else None,
                )
            await self._calls.serve(exchange, self._pool, send)

    async def _cancel(self, headers: Headers, receive: Receive, send: Send) -> None:
        """End the call of the step that the headers name. A hang-up alone does not end it: its caller may have died."""
        await read_body(receive)
        caller = await self._authentication.caller_of(headers)
        if not caller.internal:
            raise InvalidInput("Only the platform's own calls are cancelled by name; to end another, hang up.")
        await respond_json(send, 200, {"cancelled": self._calls.give_up(caller)})

    async def _models(self, headers: Headers, send: Send) -> None:
        # The project header is of no use here.
        await self._authentication.check(headers)
        assert self._pool is not None
        own = [
            {"id": name, "object": "model", "created": 0, "owned_by": "journeyman", "engine_model": engine}
            for name, engine in self._routing.names.items()
        ]
        await respond_json(send, 200, {"object": "list", "data": own + await self._pool.models(self._routing.chat)})

    async def _ready(self, send: Send) -> None:
        try:
            async with asyncio.timeout(3), self._database.transaction() as session:
                await session.execute(text("SELECT 1"))
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise Unavailable("The ledger's database does not answer.", code="ledger_unavailable") from error
        await respond_json(send, 200, {"status": "ok"})

    async def _refuse(self, send: Send, error: JourneymanError, request_id: str) -> None:
        status = error.http_status if isinstance(error, EngineRefused) else error.status
        extra = {"x-request-id": request_id.encode("ascii", "replace").decode()}
        if isinstance(error, EngineRefused) and error.retry_after is not None:
            extra["retry-after"] = error_text(error.retry_after)
        elif status == Unavailable.status:
            extra["retry-after"] = "1"
        if error.code == "method_not_allowed":
            status = 405
        metrics.REFUSALS.labels(error.code if not isinstance(error, EngineRefused) else "engine_error").inc()
        await respond_json(send, status, problem(error, request_id, status), extra)

    async def _sweep(self) -> None:
        """Now and then, make reservations of dead gateways ambiguous, and drop answers that nobody came back for."""
        while True:
            with suppress(Unavailable):
                await self._ledger.drop_answers()
                abandoned = await self._ledger.mark_abandoned()
                if abandoned:
                    _log.warning("ledger.abandoned", entries=abandoned)
            await asyncio.sleep(_SWEEP_EVERY_S)


def create_gateway(
    settings: Settings, database: Database, *, check_key: KeyCheck | None = None, routing: Routing | None = None
) -> Gateway:
    """Without ``check_key``, keys are looked up in the table of API keys."""
    return Gateway(
        database=database,
        ledger=LedgerService(
            database, PriceTable.from_settings(settings), refuse_unpriced=settings.model_refuse_unpriced
        ),
        routing=routing if routing is not None else Routing.from_settings(settings),
        authentication=Authentication(
            settings.internal_secret.get_secret_value(), check_key if check_key is not None else api_key_check(database)
        ),
        idle_timeout_s=settings.model_timeout_s,
    )


def gateway_database(settings: Settings) -> Database:
    return Database(
        create_engine(
            settings.database_url, pool_size=settings.database_pool_size, application_name="journeyman-gateway"
        )
    )


def instrumented(gateway: Gateway) -> TelemetryMiddleware:
    return TelemetryMiddleware(gateway, service="gateway")
