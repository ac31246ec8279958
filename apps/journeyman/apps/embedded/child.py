"""One supervised process: started, watched, started again with growing pauses when it ends by itself, stopped in order."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from journeyman.apps.embedded.errors import StackError
from journeyman.apps.embedded.forking import ForkedProcess, ForkServer
from journeyman.apps.embedded.launching import launched
from journeyman.apps.embedded.logs import LogFile
from journeyman.apps.embedded.ports import is_free
from journeyman.apps.embedded.processes import start_ticks_of
from journeyman.apps.embedded.specs import Part, ProcessSpec, Status

_FIRST_STARTS: Final = 3
"""How often a process may end before it was ever ready until the whole start counts as failed."""
_STEADY_S: Final = 30.0
"""A process that was ready this long is started again without a longer pause than the first."""
_LONGEST_PAUSE_S: Final = 15.0
_FIRST_PROBE_S: Final = 0.03
_LONGEST_PROBE_S: Final = 0.25
"""Probing takes time from what it waits for, on a machine of few cores."""
_PROBE_TIMEOUT_S: Final = 5.0

Process = asyncio.subprocess.Process | ForkedProcess


class Child:
    """Owns one process from :meth:`run` until :meth:`stop`. Must be used on the thread that started it: the kernel
    binds the death signal to that thread's life.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        log: LogFile,
        cwd: Path,
        changed: Callable[[], None],
        fork_server: ForkServer | None = None,
    ) -> None:
        self.spec = spec
        self.part = Part(spec.name, "process", spec.title)
        self.became_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.became_ready.add_done_callback(_retrieve)
        self._log = log
        self._cwd = cwd
        self._changed = changed
        self._fork_server = fork_server
        self._stopping = asyncio.Event()
        self._process: Process | None = None

    async def run(self) -> None:
        """Keep the process running until :meth:`stop`; returns early only when it never became ready."""
        ends = 0
        while not self._stopping.is_set():
            ready_for = await self._run_once()
            if self._stopping.is_set():
                break
            ends = 1 if ready_for > _STEADY_S else ends + 1
            if not self.became_ready.done() and ends >= _FIRST_STARTS:
                self._show(Status.FAILED, pid=None)
                tail = self._log.tail()
                self.became_ready.set_exception(
                    StackError(
                        f"{self.spec.name} does not start: {self.part.detail}. The end of {self._log.path}:\n{tail}",
                        part=self.spec.name,
                        log=str(self._log.path),
                    )
                )
                return
            self.part.restarts += 1
            self._show(Status.RESTARTING, pid=None)
            pause = min(_LONGEST_PAUSE_S, 0.1 * 2 ** (ends - 1))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
        if self.part.status is not Status.FAILED:
            self._show(Status.STOPPED, pid=None)

    async def _run_once(self) -> float:
        """One life of the process; returns for how many seconds it was ready."""
        started = time.monotonic()
        self._show(Status.STARTING, pid=None)
        try:
            self._check_ports()
            if self.spec.prepare:
                await self.spec.prepare()
            self._process = process = await self._spawn()
        except StackError as error:
            # Trying again cannot help: a missing program, a database of another version.
            self.part.detail = error.message
            if not self.became_ready.done():
                self._show(Status.FAILED, pid=None)
                self.became_ready.set_exception(error)
                self._stopping.set()
            return 0.0
        except Exception as error:  # noqa: BLE001  whatever it is, it is shown, and tried again
            self.part.detail = f"it could not be started ({error})"
            return 0.0
        self.part.start_ticks = start_ticks_of(process.pid)
        self._show(Status.STARTING, pid=process.pid)
        waiter = asyncio.create_task(process.wait())
        try:
            if not await self._wait_until_ready(process.pid, waiter):
                return 0.0
            if not self.became_ready.done() and self.spec.provision:
                await self.spec.provision()
            ready_at = time.monotonic()
            self.part.seconds = ready_at - started
            self.part.detail = ""
            self._show(Status.READY, pid=process.pid)
            if not self.became_ready.done():
                self.became_ready.set_result(None)
            await waiter
            if not self._stopping.is_set():
                self.part.detail = f"it ended by itself ({_how(process.returncode)})"
            return time.monotonic() - ready_at
        except Exception as error:  # noqa: BLE001  the first set-up failed: a new start may do better
            self.part.detail = f"its set-up failed ({error})"
            return 0.0
        finally:
            await self._end(process)
            await waiter
            self._process = None

    def _check_ports(self) -> None:
        """Whoever else listens there would answer the probe in the place of our process."""
        taken = [port for port in (*self.spec.ports, *self.spec.gated_ports) if not is_free(port)]
        if taken:
            raise OSError(f"port {taken[0]} is taken by another program")

    async def _spawn(self) -> Process:
        spec = self.spec
        with self._log.open() as log:
            if spec.forked and self._fork_server is not None:
                forked = await self._fork_server.fork(
                    spec.forked, name=spec.name, env=spec.env, directory=self._cwd, log=log
                )
                if forked is not None:
                    return forked
            return await asyncio.create_subprocess_exec(
                *launched(
                    spec.argv, death_signal=spec.death_signal, identity=spec.identity, gated_ports=spec.gated_ports
                ),
                stdin=spec.stdin() if spec.stdin else asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env=dict(spec.env),
                start_new_session=True,
            )

    async def _wait_until_ready(self, pid: int, waiter: "asyncio.Task[int]") -> bool:
        """Whether the process answers its probe before it ends, is stopped, or its time is over."""
        deadline = time.monotonic() + self.spec.start_timeout_s
        reason = ""
        pause = _FIRST_PROBE_S
        while not waiter.done() and not self._stopping.is_set():
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    await self.spec.ready(pid)
            except Exception as error:  # noqa: BLE001  not ready yet, for whatever reason
                reason = str(error) or type(error).__name__
            else:
                return not waiter.done()
            if time.monotonic() > deadline:
                self.part.detail = f"it is not ready after {self.spec.start_timeout_s:.0f} s ({reason})"
                return False
            await asyncio.wait({waiter}, timeout=pause)
            pause = min(_LONGEST_PROBE_S, pause * 1.2)
        if waiter.done():
            self.part.detail = f"it ended before it was ready ({_how(waiter.result())})"
        return False

    async def stop(self) -> None:
        """Ask the process to end, by force after its deadline. :meth:`run` returns soon afterwards."""
        self._stopping.set()
        if not self.became_ready.done():
            self.became_ready.cancel()
        if self._process is not None:
            await self._end(self._process)

    def kill(self) -> None:
        """End the process and its group by force, now."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _end(self, process: Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(self.spec.stop_signal)
            try:
                async with asyncio.timeout(self.spec.stop_timeout_s):
                    await process.wait()
            except TimeoutError:
                self.part.detail = f"it did not stop within {self.spec.stop_timeout_s:.0f} s and was killed"
        # The group may outlive its leader: nothing of it stays.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _show(self, status: Status, *, pid: int | None) -> None:
        self.part.status = status
        self.part.pid = pid
        if pid is None:
            self.part.start_ticks = None
        self._changed()


def _how(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"


def _retrieve(future: "asyncio.Future[None]") -> None:
    """Whoever waits learns of the failure; when nobody does, it is no news worth a warning."""
    if not future.cancelled():
        future.exception()
