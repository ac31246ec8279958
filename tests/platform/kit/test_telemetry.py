import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from journeyman.platform.kit import metrics
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import TelemetryMiddleware, attached, inject, model_span, setup, tracer


class Recorder:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._telemetry = setup("test", Settings(), exporter=self._exporter)

    def spans(self) -> dict[str, ReadableSpan]:
        assert self._telemetry.flush()
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def close(self) -> None:
        self._telemetry.shutdown()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.close()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> trace.SpanContext:
    assert span.context is not None
    return span.context


def test_context_crosses_a_border_as_text(recorder: Recorder) -> None:
    assert inject() == {}
    with tracer().start_as_current_span("sender"):
        carrier = inject()
    assert set(carrier) <= {"traceparent", "tracestate"}
    with attached({"Traceparent": carrier["traceparent"]}), tracer().start_as_current_span("receiver"):
        pass
    spans = recorder.spans()
    parent = spans["receiver"].parent
    assert parent is not None
    assert parent.span_id == context(spans["sender"]).span_id
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("carrier", [None, {}, {"traceparent": "nonsense"}, {"traceparent": "00-0-0-00"}])
def test_nonsense_in_a_carrier_is_ignored(recorder: Recorder, carrier: dict[str, str] | None) -> None:
    with attached(carrier), tracer().start_as_current_span("alone"):
        pass
    assert recorder.spans()["alone"].parent is None


def test_without_an_exporter_ids_still_propagate() -> None:
    telemetry = setup("test", Settings())
    with tracer().start_as_current_span("unseen") as span:
        assert not span.is_recording()
        assert inject()["traceparent"].split("-")[1] == trace.format_trace_id(span.get_span_context().trace_id)
    telemetry.shutdown()


def test_secrets_leave_no_trace(recorder: Recorder) -> None:
    with (
        pytest.raises(ValueError, match="Bearer"),
        tracer().start_as_current_span("leaky", attributes={"api_key": "aaaaaaaa", "note": "jm_bbbbbbbbbb"}),
    ):
        raise ValueError("Bearer cccccccccc")
    text = recorder.spans()["leaky"].to_json()
    assert "[redacted]" in text
    for secret in ("aaaaaaaa", "bbbbbbbbbb", "cccccccccc"):
        assert secret not in text


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_a_model_call_has_tokens_and_no_prompt(recorder: Recorder) -> None:
    with model_span("tiny", provider="vllm", max_tokens=100, journeyman__task_id="task_1") as call:
        call.first_token()
        call.answered(input_tokens=10, output_tokens=4, cached_input_tokens=8, finish_reasons=["stop"], cost_usd=0.5)
    span = recorder.spans()["chat tiny"]
    found = attributes(span)
    assert span.kind is SpanKind.CLIENT
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.provider.name"] == "vllm"
    assert found["gen_ai.request.model"] == "tiny"
    assert found["gen_ai.request.max_tokens"] == 100
    assert found["gen_ai.usage.input_tokens"] == 10
    assert found["gen_ai.usage.output_tokens"] == 4
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert found["journeyman.task_id"] == "task_1"
    assert not [name for name in found if "message" in name or "prompt" in name]
    assert sample("journeyman_model_calls_total", model="tiny", outcome="ok") == 1
    assert sample("journeyman_model_tokens_total", model="tiny", direction="cached_input") == 8
    assert sample("journeyman_model_cost_usd_total", model="tiny") == 0.5


def test_a_failed_model_call_names_its_code(recorder: Recorder) -> None:
    class EngineBusy(Exception):
        code = "rate_limited"

    with pytest.raises(EngineBusy), model_span("busy"):
        raise EngineBusy("the prompt was: confidential")
    with pytest.raises(asyncio.CancelledError), model_span("gone"):
        raise asyncio.CancelledError
    spans = recorder.spans()
    assert spans["chat busy"].status.status_code is StatusCode.ERROR
    assert attributes(spans["chat busy"])["error.type"] == "rate_limited"
    assert "confidential" not in spans["chat busy"].to_json()
    assert attributes(spans["chat gone"])["error.type"] == "cancelled"
    assert sample("journeyman_model_calls_total", model="busy", outcome="rate_limited") == 1


def web() -> FastAPI:
    app = FastAPI()

    @app.get("/things/{thing_id}")
    async def thing(thing_id: str) -> dict[str, str]:
        if thing_id == "broken":
            raise RuntimeError("it broke")
        if thing_id == "missing":
            raise HTTPException(404)
        return inject()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for number in range(3):
                yield f"data: {number}\n\n".encode()

        return StreamingResponse(parts(), media_type="text/event-stream")

    router = APIRouter()

    @router.get("/orders/{order_id}")
    async def order(order_id: str) -> str:
        return order_id

    app.include_router(router, prefix="/v1")
    app.add_middleware(TelemetryMiddleware, service="web")
    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(web(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
        yield client


async def test_requests_join_the_callers_trace(recorder: Recorder, client: httpx.AsyncClient) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await client.get("/things/7", headers={"traceparent": parent})
    span = recorder.spans()["GET /things/{thing_id}"]
    assert answer.json()["traceparent"].split("-")[1] == "0af7651916cd43dd8448eb211c80319c"
    assert span.kind is SpanKind.SERVER
    found = attributes(span)
    assert found["http.request.method"] == "GET"
    assert found["http.route"] == "/things/{thing_id}"
    assert found["url.path"] == "/things/7"
    assert found["http.response.status_code"] == 200


async def test_errors_and_unknown_paths(recorder: Recorder, client: httpx.AsyncClient) -> None:
    assert (await client.get("/things/missing")).status_code == 404
    assert (await client.get("/nowhere/at/all")).status_code == 404
    assert "GET unmatched" in recorder.spans()
    assert (await client.get("/things/broken")).status_code == 500
    span = recorder.spans()["GET /things/{thing_id}"]
    assert span.status.status_code is StatusCode.ERROR
    labels = {"service": "web", "method": "GET", "route": "unmatched", "status": "404"}
    assert sample("journeyman_http_request_duration_seconds_count", **labels) == 1
    assert sample("journeyman_http_requests_in_flight", service="web") == 0


async def test_routes_are_named_with_their_prefix(recorder: Recorder, client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/orders/7")).json() == "7"
    assert "GET /v1/orders/{order_id}" in recorder.spans()


async def test_streams_pass_through(recorder: Recorder, client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/stream") as answer:
        assert [line async for line in answer.aiter_lines() if line] == ["data: 0", "data: 1", "data: 2"]
    assert "GET /stream" in recorder.spans()


async def test_a_client_that_leaves_is_no_error(recorder: Recorder) -> None:
    entered = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        entered.set()
        await asyncio.Event().wait()

    async def ignore(message: Any) -> None: ...

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/stream", "headers": [], "server": ("web", None)}
    running = asyncio.create_task(TelemetryMiddleware(endless, service="left")(scope, receive, ignore))
    await entered.wait()
    assert sample("journeyman_http_requests_in_flight", service="left") == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sample("journeyman_http_requests_in_flight", service="left") == 0
    assert recorder.spans()["GET unmatched"].status.status_code is StatusCode.UNSET


async def test_other_protocols_are_left_alone() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    await TelemetryMiddleware(app, service="web")({"type": "lifespan"}, nothing, nothing)
    assert seen == ["lifespan"]


class Collector:
    """A loopback OTLP/HTTP receiver."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                outer.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_spans_reach_an_otlp_receiver() -> None:
    collector = Collector()
    try:
        telemetry = setup("test", Settings(otlp_endpoint=collector.url + "/"))
        with tracer().start_as_current_span("sent", attributes={"n": 1, "secret": "hidden-value"}):
            pass
        telemetry.shutdown()
        telemetry.shutdown()
    finally:
        collector.close()
    (resource,) = collector.requests[0].resource_spans
    names = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
    assert names["service.namespace"] == "journeyman"
    (span,) = resource.scope_spans[0].spans
    assert span.name == "sent"
    assert {entry.key: entry.value.string_value for entry in span.attributes}["secret"] == "[redacted]"


def test_a_receiver_that_is_away_costs_nothing_but_the_spans() -> None:
    collector = Collector()
    collector.close()
    telemetry = setup("test", Settings(otlp_endpoint=collector.url))
    with tracer().start_as_current_span("lost"):
        pass
    telemetry.shutdown()


def test_the_metrics_server_answers_on_a_free_port() -> None:
    server = metrics.start_metrics_server(0)
    try:
        answer = httpx.get(f"http://127.0.0.1:{server.server_port}/metrics")
        assert answer.status_code == 200
        assert "journeyman_outbox_pending" in answer.text
        assert metrics.metrics_page()[1].startswith("text/plain")
    finally:
        server.shutdown()
        server.server_close()


def test_every_metric_is_ours_or_the_process() -> None:
    for family in metrics.REGISTRY.collect():
        assert family.name.startswith(("journeyman_", "process_", "python_gc_"))
        assert family.documentation
