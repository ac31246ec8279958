"""All settings of all processes, read once from ``JOURNEYMAN_*`` environment variables.

Outer factories read this class; inner ones take plain arguments.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from journeyman.platform.kit.names import Queue

DEVELOPMENT_SECRET = "development-only-secret"  # noqa: S105  refused outside development, see below


class Settings(BaseSettings):
    """Typed settings. The embedded stack fills the addresses in for the processes it starts."""

    model_config = SettingsConfigDict(env_prefix="JOURNEYMAN_", extra="ignore", env_ignore_empty=True)

    environment: Literal["development", "production"] = "development"
    data_dir: Path = Field(default_factory=lambda: Path.home() / ".journeyman")

    database_url: str = "postgresql+asyncpg://journeyman@127.0.0.1:5432/journeyman"
    database_pool_size: int = 10
    temporal_address: str = "127.0.0.1:7233"
    temporal_namespace: str = "default"
    temporal_run_events: int = 4096
    """Of the embedded Temporal server: events in one run of a workflow after which it suggests to continue as a new run."""

    s3_endpoint_url: str | None = None
    s3_bucket: str = "journeyman"
    s3_access_key: SecretStr | None = None
    s3_secret_key: SecretStr | None = None
    s3_region: str = "us-east-1"

    qdrant_url: str = "http://127.0.0.1:6333"
    embedding_model: str = "multilingual-e5-small"
    embedding_dimensions: int = 384
    embedding_base_url: str | None = None

    api_host: str = "127.0.0.1"
    api_port: int = 8700
    api_url: str = "http://127.0.0.1:8700"
    upload_max_bytes: int = 256 * 1024 * 1024
    """The largest workspace archive that ``POST /v1/uploads`` takes."""
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8701
    gateway_url: str = "http://127.0.0.1:8701"
    internal_secret: SecretStr = SecretStr(DEVELOPMENT_SECRET)
    """Shared by the platform's own processes: the gateway accepts it as a key, together with task headers."""

    model_base_url: str | None = None
    """OpenAI-compatible API that answers for the agents; without one the replay engine plays the bundled demos."""
    model_api_key: SecretStr | None = None
    model_standard: str = "default"
    model_fast: str = "default"
    model_timeout_s: float = 600.0
    """Longest silence on a model's stream before the call counts as failed."""
    model_context_tokens: int = 131_072
    """What the model can read, prompt and answer together. Conversations are summed up before they outgrow it."""
    model_max_output_tokens: int = 16_384
    """Longest answer asked for."""
    model_prices: Path | None = None
    """JSON file with prices per million tokens by model; without one the bundled table."""
    model_refuse_unpriced: bool = False
    """Refuse models without a price to tasks and projects that have a limit in dollars; otherwise they count as free."""
    replay_url: str = "http://127.0.0.1:8702"
    """Where the replay engine listens: the gateway's upstream while there is no ``model_base_url``."""
    replay_scripts: Path | None = None
    """Directory with further scripts for the replay engine, beside the bundled ones."""

    sandbox_root: Path | None = None
    """Where local sandboxes keep sockets and scratch; default ``data_dir/sandboxes``."""
    sandbox_allow_unenforced_limits: bool = False
    """Run although this machine cannot enforce every limit (``journeyman status`` lists which)."""
    sandbox_max_memory_mb: int = Field(default=8 * 1024, ge=64)
    """Most memory that a task may ask for each of its sandboxes."""
    sandbox_max_disk_mb: int = Field(default=8 * 1024, ge=16)
    """Most disk that a task may ask for each of its sandboxes. Their files are in the machine's memory."""
    sandbox_max_cpus: float = Field(default=16, ge=0.1)
    """Most processors that a task may ask for each of its sandboxes."""
    sandbox_max_pids: int = Field(default=4096, ge=16)
    """Most processes and threads that a task may ask for each of its sandboxes."""
    sandbox_headroom_mb: int = Field(default=512, ge=0)
    """Memory of a machine that sandboxes are never promised, and that must be free when another one starts."""
    sandbox_overcommit: float = Field(default=100, ge=1)
    """How often the memory and disk of a sandbox of the default size (2 GiB each) are promised: few sandboxes come near their
    limits. 1 reserves them whole. What a task asks for beyond the default always counts in full."""
    git_allow_private_addresses: bool = False
    """Let tasks clone from hosts in private networks, by plain ``http`` too. Link-local and metadata addresses stay refused."""
    git_allow_own_machine: bool = False
    """Let tasks clone from loopback and this machine's own addresses too: for trials, never where others submit tasks."""

    worker_roles: str = "orchestration,sandboxes"
    """Queues that a worker polls, separated by commas."""
    worker_versioning: Literal["off", "pinned", "auto_upgrade"] = "off"
    """What becomes of running tasks when the workflow code changes.

    ``off``: workers have no version, and a task whose history the new code cannot replay stands still. ``pinned``: tasks
    stay on workers of the version that they began with, which must go on running, and move where their workflow
    continues as a new run; ``journeyman deploy`` sets the version of new tasks. ``auto_upgrade``: a worker that starts
    makes its version the current one and moves every task to it, for machines whose code is replaced at once.
    """
    worker_build_id: str | None = None
    """The version of this worker's workflow code; otherwise a fingerprint of that code."""
    single_node: bool = False
    """All workers are on one machine and have both roles: the orchestration queue serves sandboxes too. Temporal then hands an
    activity to the process that runs its workflow (eager execution), which saves the detour over another queue."""
    worker_metrics_port: int = 0
    """Where a worker serves ``/metrics``; 0 for nowhere."""
    metrics_host: str = "127.0.0.1"

    loop_stall_warn_s: float = 2.0
    """Seconds without a turn of a process's event loop after which it logs where it hangs."""
    loop_stall_exit_s: float = 30.0
    """Seconds after which such a process ends itself, so that its supervisor starts another; 0 for never."""

    otlp_endpoint: str | None = None
    log_level: str = "INFO"
    log_format: Literal["json", "console"] = "json"

    @property
    def sandbox_dir(self) -> Path:
        """Where local sandboxes are, by default below the data directory."""
        return self.sandbox_root or self.data_dir / "sandboxes"

    @property
    def sandbox_queue(self) -> Queue:
        """The task queue of work that needs a sandbox which is on no node yet."""
        return Queue.ORCHESTRATION if self.single_node else Queue.SANDBOXES

    @property
    def uses_replay_engine(self) -> bool:
        """Whether scripted answers stand in for a model: said on every screen."""
        return self.model_base_url is None

    @property
    def engine(self) -> Literal["replay", "model"]:
        """What answers for the agents: a model, or the replay engine with its scripts."""
        return "replay" if self.uses_replay_engine else "model"

    @model_validator(mode="after")
    def _single_node_means_all_roles(self) -> Self:
        missing = {"orchestration", "sandboxes"} - {role.strip() for role in self.worker_roles.split(",")}
        if self.single_node and missing:
            msg = f"JOURNEYMAN_SINGLE_NODE needs workers with both roles; these have no {', '.join(sorted(missing))}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _no_default_secret_in_production(self) -> Self:
        if self.environment == "production" and self.internal_secret.get_secret_value() == DEVELOPMENT_SECRET:
            msg = "JOURNEYMAN_INTERNAL_SECRET must be set when JOURNEYMAN_ENVIRONMENT=production"
            raise ValueError(msg)
        return self
