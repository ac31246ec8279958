"""``journeyman fork-server``: imports what the platform's processes need once, then forks each of them, ready to work.

Imports are most of what such a process does until it is ready: 1 to 3 s of CPU each, hundredths when it is forked.

Speaks with the supervisor over the socket that is its standard input (``SOCK_SEQPACKET``, a JSON object a packet):

    ← {"ready": true, "forks": true}                   once everything is imported; false: it must not fork
    → {"id": 1, "arguments": ["worker"], "name": …, "env": {…}, "directory": …}    with two descriptors: log and lifeline
    ← {"id": 1, "pid": 4711}                           with a pidfd of it
    ← {"ended": 4711, "status": -9}                    exit code, or minus the number of the signal

A process that was forked is bound to its *lifeline*, a pipe whose other end the supervisor holds: when the supervisor
closes it or dies, the kernel kills the process, whatever it is doing. The fork server's own end does not touch it.
"""

import fcntl
import gc
import json
import os
import select
import selectors
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from setproctitle import setproctitle

from journeyman.apps.exits import CommandError

MODULES: Final = (
    "journeyman.apps.roles.api",
    "journeyman.apps.roles.gateway",
    "journeyman.apps.roles.replay_engine",
    "journeyman.apps.roles.worker",
    "httpcore2",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
)
"""What the processes import by themselves otherwise. None may start a thread: a fork has only the thread that forks."""

_LARGEST_REQUEST: Final = 1024 * 1024
_DESCRIPTORS: Final = 2


def serve() -> list[str] | None:
    """Fork processes until the supervisor hangs up. Returns None then, and in each forked process its arguments.

    Raises :class:`CommandError` where standard input is no socket; ends the process when the imports have started threads.
    """
    try:
        channel = socket.socket(fileno=os.dup(0))
    except OSError:
        raise CommandError("The fork server is a part of `journeyman up`, which talks to it over a socket.") from None
    for name in MODULES:
        import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir())) - 1
    if threads:
        print(
            f"Threads run after the imports ({threads}), and a process with threads must not fork. The platform's "
            "processes are started one by one, which takes longer. What starts threads in every program is named in "
            "PYTHONPATH or LD_PRELOAD.",
            file=sys.stderr,
        )
    # What is there now stays as it is: the collector would write to pages that all share.
    gc.collect()
    gc.freeze()
    return _Server(channel).run(forks=not threads)


class _Server:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._children: dict[int, int] = {}
        """Their pids by the descriptors that tell of their ends."""

    def run(self, *, forks: bool) -> list[str] | None:
        """``forks`` is for the supervisor to heed: without, it asks for nothing."""
        self._say({"ready": True, "forks": forks})
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._channel:
                    self._reap(key.fd)
                    continue
                data, descriptors, _, _ = socket.recv_fds(
                    self._channel, _LARGEST_REQUEST, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                if not data:
                    return None
                request = json.loads(data)
                pid = os.fork()
                if pid == 0:
                    self._close()
                    _become(request, *descriptors)
                    arguments: list[str] = request["arguments"]
                    return arguments
                for descriptor in descriptors:
                    os.close(descriptor)
                told = os.pidfd_open(pid)
                self._children[told] = pid
                self._selector.register(told, selectors.EVENT_READ)
                self._say({"id": request["id"], "pid": pid}, told)

    def _reap(self, told: int) -> None:
        pid = self._children.pop(told)
        self._selector.unregister(told)
        os.close(told)
        _, status = os.waitpid(pid, 0)
        self._say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, Any], *descriptors: int) -> None:
        try:
            socket.send_fds(self._channel, [json.dumps(message).encode()], descriptors)
        except BrokenPipeError:
            sys.exit("The supervisor hung up.")

    def _close(self) -> None:
        """In a forked process: nothing of the server stays open."""
        self._selector.close()
        self._channel.close()
        for told in self._children:
            os.close(told)


def _become(request: dict[str, Any], log: int, lifeline: int) -> None:
    """Make this fork the process that was asked for: its session, output, directory, environment and lifeline."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for source in (nothing, log):
        os.close(source)
    setproctitle(f"journeyman {request['name']}")
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    _hold(lifeline)


def _hold(lifeline: int) -> None:
    """Have the kernel kill this process when the last writer of the pipe is gone: like ``PR_SET_PDEATHSIG``, but for the
    end of the supervisor, which is not the parent of this process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    # It may have been gone before we asked to be told.
    watch = select.poll()
    watch.register(lifeline, 0)
    if watch.poll(0):
        os.kill(os.getpid(), signal.SIGKILL)
