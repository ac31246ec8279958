"""The forked process between the agent and a command."""

from __future__ import annotations

import os

from .isolation import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, libc, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal


def become(body: Callable[[], None], stdin: int, output: int, rlimits: dict[str, int], nice: int) -> None:
    """Close what is the agent's, apply the limits, and run the body. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 65536)
        # Only now may others look: a process must be dumpable to be allowed to write its own score.
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        try:
            write_file("/proc/self/oom_score_adj", "500")
        except OSError:
            pass
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        import resource

        for name, limit in rlimits.items():
            resource.setrlimit(getattr(resource, name), (limit, limit))
        body()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  a child must never return into the agent's loop
        os.write(2, f"{error}\n".encode("utf-8", "replace"))
        os._exit(126)
