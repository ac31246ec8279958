from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from journeyman.platform.kit.metrics import REGISTRY
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import setup
from journeyman.platform.sandboxes.errors import SandboxUnavailable
from journeyman.platform.sandboxes.observation import observed_lease, observed_run


class Machine:
    id = "sbx_1"

    @observed_run("observed")
    async def run(self, request: str) -> Any:
        if request == "lost":
            raise SandboxUnavailable("gone")
        return SimpleNamespace(exit_code=3, timed_out=False, reattached=False, total_bytes=7)


async def test_commands_are_spans_without_their_text() -> None:
    exporter = InMemorySpanExporter()
    telemetry = setup("test", Settings(), exporter=exporter)
    await Machine().run("rm -rf secret")
    with pytest.raises(SandboxUnavailable):
        await Machine().run("lost")
    telemetry.flush()
    telemetry.shutdown()
    first, second = exporter.get_finished_spans()
    assert first.name == second.name == "sandbox.run"
    assert dict(first.attributes or {})["process.exit.code"] == 3
    assert dict(first.attributes or {})["journeyman.sandbox.id"] == "sbx_1"
    assert "secret" not in first.to_json()
    assert REGISTRY.get_sample_value("journeyman_sandbox_exec_duration_seconds_count", {"driver": "observed"}) == 2


def test_leases_are_counted_by_outcome() -> None:
    with observed_lease("observed"):
        pass
    with pytest.raises(SandboxUnavailable), observed_lease("observed"):
        raise SandboxUnavailable("full")
    for outcome in ("ok", SandboxUnavailable("full").code):
        labels = {"driver": "observed", "outcome": outcome}
        assert REGISTRY.get_sample_value("journeyman_sandbox_leases_total", labels) == 1
