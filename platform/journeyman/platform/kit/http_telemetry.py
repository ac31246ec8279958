"""Spans, durations and one access line for each HTTP request. Pure ASGI: streams and disconnects pass through untouched."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from journeyman.platform.kit import metrics
from journeyman.platform.kit.logging import get_logger

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics", "/health"})
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_log = get_logger(__name__)


class TelemetryMiddleware:
    """Wrap it around everything else, so that errors answered by inner middleware are counted too."""

    def __init__(self, app: App, *, service: str) -> None:
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = _Request(scope, self.service)
        metrics.HTTP_IN_FLIGHT.labels(self.service).inc()
        try:
            with trace.get_tracer(__name__).start_as_current_span(
                request.method,
                context=_PROPAGATOR.extract(request.carrier),
                kind=SpanKind.SERVER,
                attributes=request.attributes,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    await self.app(scope, receive, request.watching(send))
                except asyncio.CancelledError:
                    request.outcome = "disconnected"
                    raise
                except Exception as error:
                    request.failed(error, span)
                    raise
                finally:
                    request.finish(span)
        finally:
            metrics.HTTP_IN_FLIGHT.labels(self.service).dec()


class _Request:
    """What is measured of one request."""

    def __init__(self, scope: Scope, service: str) -> None:
        self.scope = scope
        self.service = service
        self.method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        self.started = time.perf_counter()
        self.first_byte: float | None = None
        self.status: int | None = None
        self.streams = False
        self.bytes = 0
        self.outcome = "answered"
        self.carrier = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope.get("headers", ())
            if name.lower() in (b"traceparent", b"tracestate")
        }
        self.attributes: dict[str, str | int] = {
            "http.request.method": self.method,
            "url.scheme": scope.get("scheme", "http"),
            "url.path": scope["path"],
            "network.protocol.version": scope.get("http_version", "1.1"),
        }
        if server := scope.get("server"):
            self.attributes["server.address"] = server[0]
            if server[1] is not None:
                self.attributes["server.port"] = server[1]

    def watching(self, send: Send) -> Send:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.first_byte = time.perf_counter()
                self.status = message["status"]
                self.streams = any(
                    name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message.get("headers", ())
                )
            elif message["type"] == "http.response.body":
                self.bytes += len(message.get("body", b""))
            await send(message)

        return watched

    def failed(self, error: Exception, span: trace.Span) -> None:
        self.outcome = "raised"
        if self.status is None:
            self.status = 500
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)

    @property
    def route(self) -> str:
        """The template that matched, never the path itself: ids in labels would have no bound."""
        template = getattr(self.scope.get("route"), "path", None)
        if not isinstance(template, str):
            return "unmatched"
        # A router that was included under a prefix names its routes without it.
        given, known = self.scope["path"].split("/"), template.split("/")
        prefix = given[1 : 1 + len(given) - len(known)] if ":path}" not in template else []
        return "/".join(["", *prefix, *known[1:]])

    def finish(self, span: trace.Span) -> None:
        ended = time.perf_counter()
        status = self.status or 499
        span.update_name(f"{self.method} {self.route}")
        span.set_attributes({"http.route": self.route, "http.response.status_code": status})
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        until = self.first_byte if self.streams and self.first_byte is not None else ended
        metrics.HTTP_DURATION.labels(self.service, self.method, self.route, str(status)).observe(until - self.started)
        write = _log.debug if self.scope["path"] in _QUIET else _log.info
        write(
            "http.request",
            request_id=self.scope.get("state", {}).get("request_id"),
            method=self.method,
            path=self.scope["path"],
            route=self.route,
            status=status,
            duration_ms=round((ended - self.started) * 1000, 1),
            bytes=self.bytes,
            outcome=self.outcome,
        )
