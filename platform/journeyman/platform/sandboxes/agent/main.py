"""Configuration, operations ``ping`` and ``renew``, and the start."""

from __future__ import annotations

import gc
import os
import time

from .commands import Commands
from .contents import send_contents
from .files import Files
from .isolation import isolate
from .limits import Limits
from .loop import Loop
from .protocol import dumps, loads
from .restore import Restore
from .scans import Scans, Tree
from .search import SearchRun
from .supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from .connections import Connection
    from .protocol import Steps
else:
    # The public module takes as long to import as all modules of the agent.
    import _signal as signal


class Agent:
    """All state of the agent. It is never restarted: it ends with its sandbox."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.loop = Loop(int(config["listen_fd"]), config["token"], float(config["lease_s"]))
        self.supervisor = Supervisor(self.loop, Limits(config), config["rlimits"], int(config.get("command_nice", 0)))
        files = Files(("/workspace", "/artifacts", "/tmp", config["home"]))  # noqa: S108  a private one
        commands = Commands(self.supervisor, config["env"], config["basic_env"])
        tree = Tree()
        scans, restore, search = Scans(tree), Restore(tree), SearchRun(files, self.supervisor)
        self.loop.operations = {
            "ping": self.ping,
            "renew": self.renew,
            "run": commands.run,
            "poll": commands.poll,
            "kill": commands.kill,
            "read": files.read,
            "write": files.write,
            "list": files.list,
            "search": search.search,
            "scan": scans.scan,
            "mark": scans.mark,
            "blobs": send_contents,
            "tree": restore.restore,
        }

    def ping(self, connection: Connection, _header: dict[str, Any], _payload: bytes) -> Steps:
        """Answer at once: ``running`` commands, and ``lease_s``, the seconds until the lease ends."""
        left = self.loop.lease_end - time.monotonic()
        connection.send({"end": 1, "running": len(self.supervisor.by_pid), "lease_s": left})
        return
        yield

    def renew(self, connection: Connection, header: dict[str, Any], _payload: bytes) -> Steps:
        """Let the lease end ``lease_s`` seconds from now."""
        self.loop.lease_end = time.monotonic() + float(header["lease_s"])
        connection.send({"end": 1})
        return
        yield


def main() -> None:
    """Read the configuration from stdin, isolate, report to ``ready_fd``, wait for ``go``, and serve until the lease ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin = os.fdopen(0, "rb", closefd=False)
    config = loads(stdin.readline())
    ready = int(config["ready_fd"])
    try:
        isolate(config)
        agent = Agent(config)
    except Exception as error:  # noqa: BLE001  whatever it was, the driver is told
        os.write(ready, dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        os._exit(1)
    os.write(ready, b'{"ok":1}\n')
    if stdin.readline() != b"go\n":
        os._exit(1)  # the driver ended before it recorded that this sandbox exists
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    keep = {int(config["listen_fd"]), agent.loop.epoll.fileno(), *agent.supervisor.descriptors()}
    keep |= {int(config[name]) for name in ("oom_fd", "stat_fd", "pids_fd") if name in config}
    for low, high in zip([2, *sorted(keep)], [*sorted(keep), 65536], strict=True):
        if low + 1 < high:  # closerange(0, 0) closes everything
            os.closerange(low + 1, high)
    # Here and not above, where it would add to the time until a sandbox serves; each command's process finds it loaded.
    import resource  # noqa: F401

    gc.freeze()
    agent.loop.serve()
    os._exit(0)
