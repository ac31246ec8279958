"""What the embedded stack is made of: processes that run, and steps that run once, each with what it depends on."""

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Probe = Callable[[int], Awaitable[None]]
"""Called with the pid. Returns when the process answers as it should, raises anything while it does not."""

Action = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class ProcessSpec:
    """One child process. Secrets travel in ``env`` or in files, never in ``argv``, which every user can see."""

    name: str
    argv: Sequence[str]
    ready: Probe
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment, not an addition to the supervisor's."""
    depends_on: Sequence[str] = ()
    uses: Sequence[str] = ()
    """What it calls once it runs: need not be ready before it starts, but is stopped after it."""
    ports: Sequence[int] = ()
    """Where it listens on loopback; must be free when it starts."""
    gated_ports: Sequence[int] = ()
    """Run in a network namespace of its own, in which these are the only ports that can be reached, by processes of our own
    account and of root alone: for servers that ask for no credentials. Not for processes that are forked."""
    prepare: Action | None = None
    """Runs before every start of the process."""
    provision: Action | None = None
    """Runs once after the first time that the process is ready."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0
    """Then SIGKILL, to the whole process group."""
    start_timeout_s: float = 60.0
    death_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends when the supervisor dies."""
    identity: int | None = None
    """Run in a user namespace as this uid."""
    forked: Sequence[str] = ()
    """Arguments of ``journeyman`` for which the fork server may start the process, instead of ``argv``."""
    stdin: Callable[[], int] | None = None
    """Descriptor of its standard input, asked for before every start; otherwise it has none."""
    title: str = ""

    def __post_init__(self) -> None:
        if not self.name.replace("-", "").isalnum():
            raise ValueError(f"{self.name!r} cannot name a process: letters, digits and hyphens only")


@dataclass(frozen=True)
class StepSpec:
    """Something that is done once a start, such as migrations."""

    name: str
    run: Action
    depends_on: Sequence[str] = ()
    title: str = ""


Spec = ProcessSpec | StepSpec


class Status(StrEnum):
    WAITING = "waiting"
    """For what it depends on."""
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    """It ended by itself and is started again after a pause."""
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass
class Part:
    """How one spec is doing: what ``journeyman status`` and the progress display show."""

    name: str
    kind: str
    """``process`` or ``step``."""
    title: str = ""
    status: Status = Status.WAITING
    pid: int | None = None
    start_ticks: int | None = None
    """Start time of the pid in clock ticks since boot: a pid alone may belong to somebody else by now."""
    restarts: int = 0
    seconds: float | None = None
    """From its start until it was ready."""
    detail: str = ""
    """Why it is not ready, when there is something to say."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "title": self.title,
            "status": self.status.value,
            "pid": self.pid,
            "start_ticks": self.start_ticks,
            "restarts": self.restarts,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "detail": self.detail,
        }
