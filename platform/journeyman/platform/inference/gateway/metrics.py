"""Prometheus metrics of the gateway, in the platform's registry."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from journeyman.platform.kit.metrics import REGISTRY

CALLS: Final = Counter(
    "journeyman_gateway_calls_total",
    "Reserved calls by outcome: ok, client_gone, rejected (by the engine, or it is down), broken, ambiguous.",
    ["kind", "outcome"],
    registry=REGISTRY,
)
TOKENS: Final = Counter(
    "journeyman_gateway_tokens_total",
    "Settled tokens; direction is input, output or cached_input; counted by the engine, or estimated.",
    ["kind", "direction", "estimated"],
    registry=REGISTRY,
)
ADDED_SECONDS: Final = Histogram(
    "journeyman_gateway_admission_seconds",
    "From the whole request to its sending: authentication, budget, ledger.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
    registry=REGISTRY,
)
REPLAYS: Final = Counter(
    "journeyman_gateway_replayed_answers_total",
    "Calls answered with what their step had paid for before, because the caller died before storing it.",
    registry=REGISTRY,
)
JOINED: Final = Counter(
    "journeyman_gateway_joined_calls_total",
    "Requests answered by a call of their step that ran already, because the caller before them died in the middle of it.",
    registry=REGISTRY,
)
UNSETTLED: Final = Gauge(
    "journeyman_gateway_unsettled", "Ended calls not yet written to the ledger.", registry=REGISTRY
)
REFUSALS: Final = Counter("journeyman_gateway_refusals_total", "Error responses by code.", ["code"], registry=REGISTRY)
ADAPTATIONS: Final = Counter(
    "journeyman_gateway_adapted_calls_total",
    "Calls sent again in a form that the engine takes, by the kind of its refusal.",
    ["refusal"],
    registry=REGISTRY,
)
