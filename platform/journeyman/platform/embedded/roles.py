"""The platform's own processes: ``journeyman <role>``, configured by environment variables only."""

import os
from collections.abc import Sequence
from typing import Any, Final

from pydantic import SecretStr

from journeyman.platform.embedded.launching import cores, python_module
from journeyman.platform.embedded.probes import http_ready, temporal_worker_ready
from journeyman.platform.embedded.specs import ProcessSpec
from journeyman.platform.kit.names import Queue
from journeyman.platform.kit.settings import Settings

_MOST_WORKERS: Final = 16
_SERVERS: Final = ("postgres", "temporal", "objects", "bucket", "vectors", "embeddings")


def default_workers() -> int:
    """One a core: workflow code holds the interpreter's lock."""
    return min(_MOST_WORKERS, cores())


def environment_of(settings: Settings) -> dict[str, str]:
    """All settings as environment variables, together with our own environment. Holds secrets."""
    # What starts again and again keeps its compiled code, whatever the caller of this one command prefers.
    left_out = ("JOURNEYMAN_", "PYTHONDONTWRITEBYTECODE")
    own = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    values = {f"JOURNEYMAN_{name.upper()}": _text(value) for name, value in settings if value is not None}
    return own | values


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def role_specs(settings: Settings, ports: dict[str, int], workers: int) -> list[ProcessSpec]:
    """The processes of the platform. The replay engine is among them only while no real model is configured."""
    env = environment_of(settings)
    replay = ["replay-engine"] if settings.uses_replay_engine else []
    # On few cores the imports of all these processes are most of a start: each begins as early as it can, and
    # reaches what it uses when it needs it.
    specs = [
        _role("gateway", "Inference gateway", env, settings.gateway_port, uses=["postgres", "embeddings", *replay]),
        _role("api", "API", env, settings.api_port, uses=_SERVERS),
    ]
    if replay:
        specs.append(_role("replay-engine", "Replay engine", env, ports["replay-engine"], depends_on=()))
    queue = settings.worker_roles.split(",")[0].strip() or Queue.ORCHESTRATION.value
    specs += [
        ProcessSpec(
            name=f"worker-{number}",
            title=f"Worker {number}",
            argv=[*journeyman_command(), "worker"],
            env=env,
            ready=temporal_worker_ready(ports["temporal-http"], settings.temporal_namespace, queue),
            depends_on=["migrations", "temporal"],
            uses=[*_SERVERS, "gateway"],
            stop_timeout_s=30,  # a worker drains for 20 s
            # To give up on a slow start only adds to what makes it slow.
            start_timeout_s=180,
        )
        for number in range(1, workers + 1)
    ]
    return specs


def _role(
    name: str,
    title: str,
    env: dict[str, str],
    port: int,
    *,
    depends_on: Sequence[str] = ("migrations",),
    uses: Sequence[str] = (),
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        title=title,
        argv=[*journeyman_command(), name],
        env=env,
        ready=http_ready(port, "/readyz"),
        ports=[port],
        depends_on=depends_on,
        uses=uses,
        stop_timeout_s=15,
    )


def journeyman_command() -> list[str]:
    """Our own command line, run by the interpreter that runs us."""
    return python_module("journeyman.platform.cli.main")
