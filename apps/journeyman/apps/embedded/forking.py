"""The supervisor's side of the fork server (:mod:`journeyman.apps.roles.fork_server`, which tells the protocol)."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

_FORK_TIMEOUT_S: Final = 2.0
"""Then the process is started the slow way."""
_STATUS_TIMEOUT_S: Final = 1.0
_LARGEST_MESSAGE: Final = 4096

UNKNOWN_STATUS: Final = 255
"""Exit code of a process whose fork server ended before it did, or did not tell."""


class ForkedProcess:
    """A process that the fork server started for us, with what we use of ``asyncio.subprocess.Process``.

    It is not our child: its ``pidfd`` tells of its end, whatever became of the fork server, which tells its exit code.
    """

    def __init__(self, pid: int, pidfd: int, lifeline: int, status: "asyncio.Future[int]") -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd: int | None = pidfd
        self._lifeline = lifeline
        self._status = status
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end, pidfd)

    def _on_end(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        os.close(self._lifeline)
        self._pidfd = None
        self._ended.set_result(None)

    async def wait(self) -> int:
        """Its exit code, or minus the number of the signal that ended it."""
        await asyncio.shield(self._ended)
        await asyncio.wait([self._status], timeout=_STATUS_TIMEOUT_S)
        if self.returncode is None:
            self.returncode = self._status.result() if self._status.done() else UNKNOWN_STATUS
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Raises ``ProcessLookupError`` when it has ended."""
        if self._pidfd is None:
            raise ProcessLookupError(self.pid)
        signal.pidfd_send_signal(self._pidfd, number)


class _Forked(NamedTuple):
    """The answer to a request: a process that has begun, and its exit code to come."""

    pid: int
    pidfd: int
    status: "asyncio.Future[int]"


class ForkServer:
    """Asks the fork server for processes. While there is none, or it does not answer, they are started without it."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether it can fork."""
        self._requests = 0
        self._asked: dict[int, asyncio.Future[_Forked]] = {}
        """By the number of the request."""
        self._statuses: dict[int, asyncio.Future[int]] = {}
        """Of the processes that run, by pid."""

    async def open(self) -> None:
        """Make the channel for a server that is about to start."""
        self.close()
        self._channel, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self._ready = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._channel, self._on_message, self._channel)

    def standard_input(self) -> int:
        """The server's end of the channel."""
        assert self._theirs is not None
        return self._theirs.fileno()

    async def ready(self, _pid: int) -> None:
        """A probe: returns when the server has imported everything, whether it can fork then or not."""
        await asyncio.shield(self._ready)
        if self._theirs is not None:
            # Only now: from here on we hear when the server ends, until then our supervisor does.
            self._theirs.close()
            self._theirs = None

    async def fork(
        self, arguments: Sequence[str], *, name: str, env: Mapping[str, str], directory: Path, log: IO[bytes]
    ) -> ForkedProcess | None:
        """A process that runs ``journeyman`` with these arguments; None when it has to be started in another way."""
        if self._channel is None or not self._ready.done() or not self._ready.result():
            return None
        self._requests += 1
        number = self._requests
        request = {"id": number, "arguments": [*arguments], "name": name, "env": {**env}, "directory": str(directory)}
        self._asked[number] = asyncio.get_running_loop().create_future()
        theirs, lifeline = os.pipe()
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [log.fileno(), theirs])
            async with asyncio.timeout(_FORK_TIMEOUT_S):
                forked = await self._asked[number]
        except BaseException as error:
            # Forked nevertheless, or in a while, it ends at once: nobody holds its lifeline.
            os.close(lifeline)
            self._forget(self._asked[number])
            if isinstance(error, OSError):  # a timeout too
                return None
            raise
        finally:
            os.close(theirs)
            del self._asked[number]
        return ForkedProcess(forked.pid, forked.pidfd, lifeline, forked.status)

    def close(self) -> None:
        """Let the server end; the processes go on."""
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
        for end in (self._channel, self._theirs):
            if end is not None:
                end.close()
        self._channel = self._theirs = None
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the fork server ended"))
        for status in self._statuses.values():
            status.set_result(UNKNOWN_STATUS)
        self._statuses.clear()

    def _on_message(self, channel: socket.socket) -> None:
        data, descriptors = b"", list[int]()
        with suppress(ConnectionError):
            data, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            self.close()
            return
        message: dict[str, Any] = json.loads(data)
        if "ready" in message:
            self._ready.set_result(message["forks"])
        elif "ended" in message:
            status = self._statuses.pop(message["ended"], None)
            if status is not None:
                status.set_result(message["status"])
        else:
            self._on_forked(message["id"], message["pid"], *descriptors)

    @staticmethod
    def _forget(answer: "asyncio.Future[_Forked]") -> None:
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            os.close(answer.result().pidfd)

    def _on_forked(self, number: int, pid: int, pidfd: int) -> None:
        answer = self._asked.get(number)
        if answer is None or answer.done():
            os.close(pidfd)
            return
        status = self._statuses[pid] = asyncio.get_running_loop().create_future()
        answer.set_result(_Forked(pid, pidfd, status))
