"""The platform's own processes: ``journeyman <role>``, configured by environment variables only."""

import os
from collections.abc import Sequence
from typing import Any, Final

from pydantic import SecretStr

from journeyman.apps.embedded.forking import ForkServer
from journeyman.apps.embedded.launching import cores, python_module
from journeyman.apps.embedded.probes import http_ready, temporal_worker_ready
from journeyman.apps.embedded.specs import ProcessSpec
from journeyman.platform.kit.names import Queue
from journeyman.platform.kit.settings import Settings

_FORK_SERVER: Final = "fork-server"
_MOST_WORKERS: Final = 16
_START_TIMEOUT_S: Final = 180
"""Of what imports much: to give up on a slow start only adds to what makes it slow."""
_SERVERS: Final = ("postgres", "temporal", "objects", "bucket", "vectors", "embeddings")


def default_workers() -> int:
    """One a core: workflow code holds the interpreter's lock."""
    return min(_MOST_WORKERS, cores())


def environment_of(settings: Settings) -> dict[str, str]:
    """All settings as environment variables, together with our own environment. Holds secrets."""
    values = {f"JOURNEYMAN_{name.upper()}": _text(value) for name, value in settings if value is not None}
    return _own_environment() | values


def _own_environment() -> dict[str, str]:
    # What starts again and again keeps its compiled code, whatever the caller of this one command prefers.
    left_out = ("JOURNEYMAN_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def role_specs(settings: Settings, ports: dict[str, int], workers: int, fork_server: ForkServer) -> list[ProcessSpec]:
    """The processes of the platform. The replay engine is among them only while no real model is configured."""
    env = environment_of(settings)
    replay = ["replay-engine"] if settings.uses_replay_engine else []
    # On few cores their imports are most of a start, so they are forked from one process that has done them. Each begins
    # as early as it can, and reaches what it uses when it needs it.
    specs = [
        fork_server_spec(fork_server),
        _role("gateway", "Inference gateway", env, settings.gateway_port, uses=["postgres", "embeddings", *replay]),
        _role("api", "API", env, settings.api_port, uses=_SERVERS),
    ]
    if replay:
        specs.append(_role("replay-engine", "Replay engine", env, ports["replay-engine"], depends_on=[_FORK_SERVER]))
    queue = settings.worker_roles.split(",")[0].strip() or Queue.ORCHESTRATION.value
    specs += [
        ProcessSpec(
            name=f"worker-{number}",
            title=f"Worker {number}",
            argv=[*journeyman_command(), "worker"],
            forked=["worker"],
            env=env,
            ready=temporal_worker_ready(ports["temporal-http"], settings.temporal_namespace, queue),
            depends_on=[_FORK_SERVER, "migrations", "temporal"],
            uses=[*_SERVERS, "gateway"],
            stop_timeout_s=30,  # a worker drains for 20 s
            start_timeout_s=_START_TIMEOUT_S,
        )
        for number in range(1, workers + 1)
    ]
    return specs


def fork_server_spec(server: ForkServer) -> ProcessSpec:
    """The process that ``server`` asks for others. Its environment holds nothing of the settings, some of which are secret."""
    return ProcessSpec(
        name=_FORK_SERVER,
        title="Fork server",
        argv=[*journeyman_command(), _FORK_SERVER],
        env=_own_environment(),
        ready=server.ready,
        prepare=server.open,
        stdin=server.standard_input,
        start_timeout_s=_START_TIMEOUT_S,
    )


def _role(
    name: str,
    title: str,
    env: dict[str, str],
    port: int,
    *,
    depends_on: Sequence[str] = (_FORK_SERVER, "migrations"),
    uses: Sequence[str] = (),
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        title=title,
        argv=[*journeyman_command(), name],
        forked=[name],
        env=env,
        ready=http_ready(port, "/readyz"),
        ports=[port],
        depends_on=depends_on,
        uses=uses,
        stop_timeout_s=15,
    )


def journeyman_command() -> list[str]:
    """Our own command line, run by the interpreter that runs us."""
    return python_module("journeyman.apps.cli.main")
