"""What can go wrong with a sandbox, below the platform's root of errors.

Unavailable
├── SandboxUnavailable   none can be leased here and now
│   └── NoRoomForSandbox the machine has no memory for it now
├── LimitsNotEnforced    this machine cannot hold a sandbox to its limits (not retryable)
├── SandboxElsewhere     the sandbox is on another node, which is alive: the work goes there (not retryable here)
└── SandboxLost          the sandbox is gone or does not answer: lease another, restore a snapshot
NotFound
└── ExecNotFound
InvalidInput
├── SandboxTooLarge      no machine could ever hold it
├── SandboxFileError     ``kind`` says why a file operation was refused
└── SearchRefused        a pattern that is no regular expression, or takes too long
RateLimited
└── TooManyCommands
"""

from typing import Any, ClassVar, Final

from journeyman.platform.kit.errors import InvalidInput, NotFound, RateLimited, Unavailable

LOST_WHILE_RUNNING: Final = "the sandbox was lost while this command ran"
"""Part of what an agent is told of a command whose sandbox died: it may have run, and its effects are gone."""


class SandboxUnavailable(Unavailable):
    code = "sandbox_unavailable"


class NoRoomForSandbox(SandboxUnavailable):
    """The work is given back to the queue: others may end in the meantime, and another machine may have room."""

    code = "no_room_for_sandbox"
    retry_after_s: ClassVar[float] = 1.0


class SandboxTooLarge(InvalidInput):
    code = "sandbox_too_large"


class LimitsNotEnforced(Unavailable):
    code = "limits_not_enforced"
    retryable = False


class SandboxLost(Unavailable):
    code = "sandbox_lost"


class SandboxElsewhere(Unavailable):
    """The sandbox is on another node that is alive. ``node`` names it: the workflow sends the work to that node's queue."""

    code = "sandbox_elsewhere"
    retryable = False

    def __init__(self, message: str, *, node: str) -> None:
        super().__init__(message, node=node)


class ExecNotFound(NotFound):
    code = "exec_not_found"


class SandboxFileError(InvalidInput):
    """A refused file operation. ``kind`` is one of ``KINDS`` and also the end of ``code``."""

    KINDS: ClassVar[frozenset[str]] = frozenset(
        {
            "not_found",
            "is_a_directory",
            "not_a_directory",
            "not_a_file",
            "outside",
            "too_large",
            "no_space",
            "permission",
            "invalid",
        }
    )

    def __init__(self, message: str, *, kind: str, **details: Any) -> None:
        self.kind = kind if kind in self.KINDS else "invalid"
        super().__init__(message, code=f"file_{self.kind}", **details)


class SearchRefused(InvalidInput):
    code = "search_refused"


class TooManyCommands(RateLimited):
    code = "too_many_commands"


class SnapshotRefused(InvalidInput):
    """The workspace cannot be kept as a snapshot: too many files or bytes."""

    code = "snapshot_refused"
