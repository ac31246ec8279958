"""Traces: one provider a process, W3C context across every border, spans for model calls, a plugin for Temporal.

Without an OTLP endpoint nothing is recorded, yet ids still propagate, so that log lines of one task share a ``trace_id``.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import structlog
import temporalio.activity
import temporalio.client
import temporalio.worker
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, ReplaySafeTracerProvider, create_tracer_provider
from temporalio.plugin import SimplePlugin

from journeyman.platform.kit import logging as logs
from journeyman.platform.kit import metrics
from journeyman.platform.kit.http_telemetry import TelemetryMiddleware
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.metrics import start_metrics_server
from journeyman.platform.kit.redaction import redact, redact_text
from journeyman.platform.kit.settings import Settings

__all__ = [
    "ModelSpan",
    "Telemetry",
    "TelemetryMiddleware",
    "attached",
    "inject",
    "model_span",
    "setup",
    "start_metrics_server",
    "temporal_plugins",
    "tracer",
]

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class _WhileExported(Sampler):
    """Records while somebody exports; otherwise spans are only ids. The caller's own sampling does not decide."""

    def __init__(self) -> None:
        self.exporters = 0

    def should_sample(
        self,
        parent_context: otel_context.Context | None,
        trace_id: int,  # noqa: ARG002  the interface's
        name: str,  # noqa: ARG002
        kind: SpanKind | None = None,  # noqa: ARG002
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,  # noqa: ARG002
        trace_state: trace.TraceState | None = None,  # noqa: ARG002
    ) -> SamplingResult:
        parent = trace.get_current_span(parent_context).get_span_context()
        decision = Decision.RECORD_AND_SAMPLE if self.exporters else Decision.DROP
        return SamplingResult(decision, attributes if self.exporters else None, parent.trace_state)

    def get_description(self) -> str:
        return "WhileExported"


class _Process:
    """The tracer provider of this process: OpenTelemetry allows to set it once."""

    def __init__(self) -> None:
        self.provider: ReplaySafeTracerProvider | None = None
        self.sampler = _WhileExported()

    def ensure(self, service: str) -> ReplaySafeTracerProvider:
        if self.provider is None:
            resource = Resource.create(
                {
                    "service.name": f"journeyman-{service}",
                    "service.namespace": "journeyman",
                    "service.version": _version(),
                    "service.instance.id": new_id("request").removeprefix("req_"),
                }
            )
            # Replay-safe: ids and ends of spans inside workflows come out the same when another worker replays them.
            self.provider = create_tracer_provider(sampler=self.sampler, resource=resource, shutdown_on_exit=False)
            trace.set_tracer_provider(self.provider)
        return self.provider


_process = _Process()


def _version() -> str:
    try:
        return version("journeyman")
    except PackageNotFoundError:
        return "unknown"


class Telemetry:
    """What ``setup`` started. ``shutdown`` sends what is still buffered; call it once, when the process ends."""

    def __init__(self, provider: ReplaySafeTracerProvider, processor: SpanProcessor | None) -> None:
        self.provider = provider
        self._processor = processor

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Whether everything buffered was handed over in time."""
        return self._processor is None or self._processor.force_flush(int(timeout_s * 1000))

    def shutdown(self) -> None:
        """Flush and stop exporting. Blocking, for as long as the exporter's timeout at most."""
        if self._processor is not None:
            processor, self._processor = self._processor, None
            processor.shutdown()
            _process.sampler.exporters -= 1


def setup(service: str, settings: Settings, *, exporter: SpanExporter | None = None) -> Telemetry:
    """Configure logs and traces of this process; its name in traces is ``journeyman-<service>``.

    ``exporter`` stands in for the OTLP one. Called again in the same process (as tests do), it adds an exporter to the
    provider that is already there, whose service name stays.
    """
    logs.configure_from(service, settings)
    provider = _process.ensure(service)
    if exporter is None and settings.otlp_endpoint:
        exporter = OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces", timeout=5)
    if exporter is None:
        return Telemetry(provider, None)
    processor = BatchSpanProcessor(_Redacting(exporter), schedule_delay_millis=1000)
    provider.add_span_processor(processor)
    _process.sampler.exporters += 1
    return Telemetry(provider, processor)


def tracer(name: str = "journeyman") -> trace.Tracer:
    """Where spans come from; start them with ``start_as_current_span(name, attributes=…)``."""
    return trace.get_tracer(name)


def inject() -> dict[str, str]:
    """The current span as W3C ``traceparent`` (and ``tracestate``): to be stored, or sent as headers. Empty outside spans."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier


@contextmanager
def attached(carrier: Mapping[str, str] | None) -> Iterator[None]:
    """Make the span that ``inject`` wrote down the parent of spans started inside the block. Nonsense is ignored."""
    if not carrier:
        yield
        return
    token = otel_context.attach(_PROPAGATOR.extract({key.lower(): str(value) for key, value in carrier.items()}))
    try:
        yield
    finally:
        otel_context.detach(token)


class ModelSpan:
    """The span of one model call, in the names of the GenAI semantic conventions. It never sees prompts or answers."""

    def __init__(self, span: trace.Span, model: str) -> None:
        self._span = span
        self._model = model
        self._started = time.perf_counter()
        self.outcome = "ok"

    def first_token(self) -> None:
        """Call at the first token of the stream."""
        elapsed = time.perf_counter() - self._started
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", elapsed)
        metrics.MODEL_FIRST_TOKEN.labels(self._model).observe(elapsed)

    def answered(
        self,
        *,
        input_tokens: int,
        output_tokens: int,
        cached_input_tokens: int = 0,
        response_model: str | None = None,
        response_id: str | None = None,
        finish_reasons: Sequence[str] = (),
        cost_usd: float | None = None,
    ) -> None:
        """Record what the engine reported; ``cached_input_tokens`` are part of ``input_tokens``."""
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": input_tokens,
                "gen_ai.usage.output_tokens": output_tokens,
                "gen_ai.usage.cache_read.input_tokens": cached_input_tokens,
                "gen_ai.response.finish_reasons": list(finish_reasons),
            }
        )
        if response_model is not None:
            self._span.set_attribute("gen_ai.response.model", response_model)
        if response_id is not None:
            self._span.set_attribute("gen_ai.response.id", response_id)
        for direction, count in (
            ("input", input_tokens),
            ("output", output_tokens),
            ("cached_input", cached_input_tokens),
        ):
            metrics.MODEL_TOKENS.labels(self._model, direction).inc(count)
        if cost_usd is not None:
            self._span.set_attribute("journeyman.cost_usd", cost_usd)
            metrics.MODEL_COST_USD.labels(self._model).inc(cost_usd)

    def failed(self, code: str) -> None:
        """The call failed with this stable code; an exception that leaves the block does the same with its own."""
        self.outcome = code
        self._span.set_attribute("error.type", code)
        self._span.set_status(Status(StatusCode.ERROR, code))

    def set_attribute(self, name: str, value: str | float | bool) -> None:
        self._span.set_attribute(name, value)

    def observe(self) -> None:
        """Count the call; done when the block of ``model_span`` ends."""
        metrics.MODEL_CALLS.labels(self._model, self.outcome).inc()
        metrics.MODEL_DURATION.labels(self._model).observe(time.perf_counter() - self._started)


@contextmanager
def model_span(
    model: str,
    *,
    operation: str = "chat",
    provider: str = "openai",
    max_tokens: int | None = None,
    temperature: float | None = None,
    **attributes: str | float | bool,
) -> Iterator[ModelSpan]:
    """A span and the metrics of one model call. ``operation`` is ``chat`` or ``embeddings``; further attributes as given."""
    given: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        **{name.replace("__", "."): value for name, value in attributes.items()},
    }
    if max_tokens is not None:
        given["gen_ai.request.max_tokens"] = max_tokens
    if temperature is not None:
        given["gen_ai.request.temperature"] = temperature
    with tracer().start_as_current_span(
        f"{operation} {model}",
        kind=SpanKind.CLIENT,
        attributes=given,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        handle = ModelSpan(span, model)
        try:
            yield handle
        except asyncio.CancelledError:
            handle.failed("cancelled")
            raise
        except Exception as error:
            # Not the exception's text: engines quote prompts in their error messages.
            handle.failed(str(getattr(error, "code", None) or type(error).__name__))
            raise
        finally:
            handle.observe()


class _Redacting(SpanExporter):
    """Hands spans on with secrets replaced in attributes, events and status."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([_redacted(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _redacted(span: ReadableSpan) -> ReadableSpan:
    status = span.status
    if status.description:
        status = Status(status.status_code, redact_text(status.description))
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=redact(span.attributes or {}),
        events=[Event(event.name, redact(event.attributes or {}), event.timestamp) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def temporal_plugins(settings: Settings) -> list[temporalio.client.Plugin]:
    """Plugins for the Temporal *client*: workers made from it get them too, so do not pass them to ``Worker`` again.

    The OpenTelemetry plugin makes the spans (``StartWorkflow``, ``RunWorkflow``, ``RunActivity`` …) when traces are
    exported, and otherwise only carries the context. The other binds ``task_id``, ``activity`` and ``attempt`` to the log
    lines of activities and times them. Call ``setup`` first.
    """
    _process.ensure("worker")
    exported = bool(settings.otlp_endpoint) or _process.sampler.exporters > 0
    return [
        OpenTelemetryPlugin(add_temporal_spans=exported),
        SimplePlugin("journeyman.telemetry", interceptors=[_ActivityTelemetry()]),
    ]


class _ActivityTelemetry(temporalio.worker.Interceptor):
    def intercept_activity(
        self,
        next: temporalio.worker.ActivityInboundInterceptor,  # noqa: A002  the interface's
    ) -> temporalio.worker.ActivityInboundInterceptor:
        return _ActivityInbound(next)


class _ActivityInbound(temporalio.worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:  # noqa: A002
        info = temporalio.activity.info()
        started = time.perf_counter()
        outcome = "ok"
        workflow_id = info.workflow_id or ""
        task_id = workflow_id.partition("/")[0]
        fields: dict[str, Any] = {"activity": info.activity_type, "attempt": info.attempt, "workflow_id": workflow_id}
        if task_id.startswith("task_"):
            fields["task_id"] = task_id
            trace.get_current_span().set_attribute("journeyman.task_id", task_id)
        # Not taken back: an activity runs in an asyncio task of its own, and who logs its failure does so after us.
        structlog.contextvars.bind_contextvars(**fields)
        try:
            return await super().execute_activity(input)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception:
            outcome = "error"
            raise
        finally:
            elapsed = time.perf_counter() - started
            metrics.ACTIVITY_DURATION.labels(info.activity_type, outcome).observe(elapsed)
