"""All Prometheus metrics of the platform, in one registry. Labels are few and bounded: never an id, a path or a text."""

from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
    start_http_server,
)
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

_PENDING: Final = "journeyman.metrics"
_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)

HTTP_DURATION: Final = Histogram(
    "journeyman_http_request_duration_seconds",
    "Time to the last byte of the answer; of an event stream, to its first.",
    ["service", "method", "route", "status"],
    buckets=_FAST,
    registry=REGISTRY,
)
HTTP_IN_FLIGHT: Final = Gauge(
    "journeyman_http_requests_in_flight",
    "Requests being answered, event streams included.",
    ["service"],
    registry=REGISTRY,
)
EVENTS_APPENDED: Final = Counter(
    "journeyman_events_appended_total", "Events written to task logs.", ["type"], registry=REGISTRY
)
TASK_TRANSITIONS: Final = Counter(
    "journeyman_task_transitions_total", "Tasks that entered a state.", ["state"], registry=REGISTRY
)
TASKS_RECOVERED: Final = Counter(
    "journeyman_tasks_recovered_total",
    "Tasks begun anew from their rows because Temporal had lost their workflow.",
    registry=REGISTRY,
)
TASK_PAUSES: Final = Counter(
    "journeyman_task_pauses_total", "Tasks that began to wait, by what for.", ["reason"], registry=REGISTRY
)
TASKS_PAUSED: Final = Gauge(
    "journeyman_tasks_paused", "Tasks that wait, by what for, as last counted.", ["reason"], registry=REGISTRY
)
BUDGET_WARNED: Final = Counter(
    "journeyman_budget_warnings_total",
    "Limits of which 80 % were used; level is task or project.",
    ["level", "limit"],
    registry=REGISTRY,
)
BUDGET_EXHAUSTED: Final = Counter(
    "journeyman_budget_exhausted_total", "Tasks stopped at a limit.", ["level", "limit"], registry=REGISTRY
)
BREAKER_TRIPS: Final = Counter(
    "journeyman_circuit_breaker_trips_total",
    "Tasks stopped for going round in circles, by what was noticed.",
    ["kind"],
    registry=REGISTRY,
)
LEDGER_AMBIGUOUS: Final = Gauge(
    "journeyman_ledger_ambiguous_entries",
    "Calls of which a crash has hidden whether they were billed, as last counted.",
    registry=REGISTRY,
)
UNPRICED_CALLS: Final = Counter(
    "journeyman_unpriced_calls_total",
    "Calls of models that no price is known for, by kind: they count as free.",
    ["kind"],
    registry=REGISTRY,
)
TASKS: Final = Gauge("journeyman_tasks", "Tasks by state, as last counted.", ["state"], registry=REGISTRY)
MODEL_CALLS: Final = Counter(
    "journeyman_model_calls_total",
    "Model calls by outcome: ok or an error code.",
    ["model", "outcome"],
    registry=REGISTRY,
)
MODEL_DURATION: Final = Histogram(
    "journeyman_model_call_duration_seconds", "Request to last token.", ["model"], buckets=_SLOW, registry=REGISTRY
)
MODEL_FIRST_TOKEN: Final = Histogram(
    "journeyman_model_first_token_seconds", "Request to first token.", ["model"], buckets=_SLOW, registry=REGISTRY
)
MODEL_TOKENS: Final = Counter(
    "journeyman_model_tokens_total",
    "Tokens as the engine counted them; direction is input, output or cached_input.",
    ["model", "direction"],
    registry=REGISTRY,
)
MODEL_COST_USD: Final = Counter("journeyman_model_cost_usd_total", "Settled cost.", ["model"], registry=REGISTRY)
SANDBOX_LEASES: Final = Counter(
    "journeyman_sandbox_leases_total", "Leases asked for, by outcome.", ["driver", "outcome"], registry=REGISTRY
)
SANDBOX_LEASE_DURATION: Final = Histogram(
    "journeyman_sandbox_lease_duration_seconds", "Asked to ready.", ["driver"], buckets=_FAST, registry=REGISTRY
)
SANDBOX_EXEC_DURATION: Final = Histogram(
    "journeyman_sandbox_exec_duration_seconds", "Commands in sandboxes.", ["driver"], buckets=_SLOW, registry=REGISTRY
)
ACTIVITY_DURATION: Final = Histogram(
    "journeyman_activity_duration_seconds",
    "Activities by outcome: ok, cancelled or error.",
    ["activity", "outcome"],
    buckets=_SLOW,
    registry=REGISTRY,
)
APPROVALS: Final = Counter(
    "journeyman_approvals_total",
    "What happened to approvals: requested, escalated, approved, rejected, expired or withdrawn.",
    ["kind", "outcome"],
    registry=REGISTRY,
)
APPROVALS_PENDING: Final = Gauge(
    "journeyman_approvals_pending", "Approvals that wait for a person, as last counted.", ["kind"], registry=REGISTRY
)
PROMPT_ASSEMBLY: Final = Histogram(
    "journeyman_prompt_assembly_seconds",
    "From the first statement of SQL of a model call to the messages that are sent.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 1),
    registry=REGISTRY,
)
STRANDED_TASKS: Final = Gauge(
    "journeyman_stranded_tasks",
    "Running tasks on a version of the workflow code that no worker serves.",
    ["build_id"],
    registry=REGISTRY,
)
LOOP_STALLS: Final = Counter(
    "journeyman_event_loop_stalls_total",
    "Times that a process's event loop did not run for longer than it should.",
    ["service"],
    registry=REGISTRY,
)
OUTBOX_PENDING: Final = Gauge("journeyman_outbox_pending", "Outbox rows not yet delivered.", registry=REGISTRY)
OUTBOX_LAG: Final = Gauge(
    "journeyman_outbox_lag_seconds", "Age of the oldest row not yet delivered.", registry=REGISTRY
)
MEMORY_DOWN: Final = Gauge(
    "journeyman_memory_down",
    "1 while a part that the memory needs does not answer this process, as last tried: index or embedder.",
    ["part"],
    registry=REGISTRY,
)
MEMORY_UNINDEXED: Final = Gauge(
    "journeyman_memory_unindexed", "Memories that the index has not followed yet.", registry=REGISTRY
)
MEMORY_RECALLS: Final = Counter(
    "journeyman_memory_recalls_total",
    "Recalls by what answered: index; or by words alone, because embedder or index were slow or down.",
    ["answered"],
    registry=REGISTRY,
)


def metrics_page() -> tuple[bytes, str]:
    """Body and content type of ``GET /metrics``."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST


def start_metrics_server(port: int, host: str = "127.0.0.1") -> WSGIServer:
    """Serve ``/metrics`` from a thread of its own; port 0 takes a free one (``server.server_port``).

    Stop it with ``server.shutdown()``, then ``server.server_close()``.
    """
    server, _thread = start_http_server(port, addr=host, registry=REGISTRY)
    return server


def count_after_commit(session: AsyncSession, counter: Counter, *labels: str) -> None:
    """Count what the session's transaction did once it is committed, and nothing if it is rolled back."""
    pending: list[tuple[Counter, tuple[str, ...]]] | None = session.info.get(_PENDING)
    if pending is None:
        pending = session.info[_PENDING] = []
    pending.append((counter, labels))


@event.listens_for(Session, "after_commit")
def _count(session: Session) -> None:
    for counter, labels in session.info.get(_PENDING, ()):
        counter.labels(*labels).inc()
    _forget(session)


@event.listens_for(Session, "after_rollback")
def _forget(session: Session) -> None:
    session.info.pop(_PENDING, None)
