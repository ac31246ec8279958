"""Start, feed, reap and end commands."""

from __future__ import annotations

import os
import select
import time

from .child import become
from .command import RunningCommand
from .limits import disk_is_full
from .processes import Process, processes, send_signal
from .protocol import OpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections import deque
    from collections.abc import Callable, Iterable
    from typing import Final

    from .connections import Task
    from .limits import Limits
    from .loop import Loop
    from .protocol import Steps
else:
    import _signal as signal
    from _collections import deque

KEPT_OUTPUT: Final = 64 * 1024 * 1024
"""Bytes of output kept of commands that have ended; the oldest lose theirs first."""
DRAIN_S: Final = 0.1
"""How long output is awaited from what a command left running, once the command has ended."""
GRACE_S: Final = 0.5
"""Between SIGTERM and SIGKILL."""
LEFTOVER_S: Final = 1.0
"""How long what a command left running may take to end by itself."""
WATCH_S: Final = 0.1
"""Between checks of memory and processes."""


class Supervisor:
    """Every process that the agent started, until it is reaped and its output is read.

    ``rlimits`` are resource limits of each command by name; ``nice`` is added to its priority.
    """

    def __init__(self, loop: Loop, limits: Limits, rlimits: dict[str, int], nice: int) -> None:
        self.loop = loop
        self.limits = limits
        self.rlimits = rlimits
        self.nice = nice
        self.by_pid: dict[int, RunningCommand] = {}
        self.tidied: set[RunningCommand] = set()
        """Commands that have ended, but not yet what they left behind."""
        self.ended: list[RunningCommand] = []
        """Commands that were collected, but whose end is not dealt with yet."""
        self.orphans: dict[int, set[RunningCommand]] = {}
        """Processes that have outlived their command, by pid, with the commands that they may be of."""
        self.kept = 0
        self.finished: deque[RunningCommand] = deque()
        self.pipes: dict[int, RunningCommand] = {}
        self.children = False
        self.next_watch = 0.0
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        loop.watch(self.wake_read, select.EPOLLIN, self.child_ended)
        loop.timers.append((self.next_deadline, self.run_timers))
        loop.on_drop.append(self.forget_watcher)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors that have to stay open."""
        return self.wake_read, self.wake_write

    def child_ended(self) -> None:
        os.read(self.wake_read, 4096)
        self.reap()

    def forget_watcher(self, task: Task) -> None:
        for running in (*self.by_pid.values(), *self.pipes.values()):
            running.watchers.discard(task)

    def next_deadline(self) -> float:
        times = [running.deadline for running in self.by_pid.values()]
        times += [
            draining.exited_at + DRAIN_S
            for draining in self.pipes.values()
            if draining.exited_at is not None and not draining.finished and not draining.killing
        ]
        if self.children:
            times.append(self.next_watch)
        return min(times, default=float("inf"))

    def run_timers(self, now: float) -> None:
        for running in list(self.by_pid.values()):
            if now >= running.deadline and not running.killing:
                running.timed_out = True
                self.end(running)
        for draining in list(self.pipes.values()):
            if draining.exited_at is not None and now >= draining.exited_at + DRAIN_S:
                self.finish(draining)
        if self.children and now >= self.next_watch:
            self.next_watch = now + WATCH_S
            self.watch_limits()

    def watch_limits(self) -> None:
        """Note with which commands memory or processes ran out."""
        if self.limits.enforce_memory():
            for command in self.by_pid.values():
                command.oom = True
        if (self.by_pid or self.tidied) and self.limits.processes_used_up():
            for command in (*self.by_pid.values(), *self.tidied):
                command.pids_hit = True

    def spawn(self, command: RunningCommand, body: Callable[[], None], stdin: bytes) -> None:
        """Start the process of a command. Raises ``process_limit`` when no process can be started."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        stdin_read = stdin_write = -1
        if stdin:
            stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
        else:
            stdin_read = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError as error:
            for fd in (read_end, write_end, stdin_read, stdin_write):
                if fd >= 0:
                    os.close(fd)
            raise OpError("process_limit", f"no process can be started: {error.strerror}") from None
        if pid == 0:
            become(body, stdin_read, write_end, self.rlimits, self.nice)
        os.close(write_end)
        os.close(stdin_read)
        os.set_blocking(read_end, False)
        command.pid = pid
        command.pipe = read_end
        self.by_pid[pid] = command
        self.pipes[read_end] = command
        self.loop.watch(read_end, select.EPOLLIN, lambda: self.read_pipe(read_end))
        self.children = True
        if stdin:
            os.set_blocking(stdin_write, False)
            command.stdin, command.stdin_fd = memoryview(stdin), stdin_write
            self.loop.watch(stdin_write, select.EPOLLOUT, lambda: self.feed(command))

    def read_pipe(self, fd: int) -> None:
        command = self.pipes[fd]
        try:
            data = os.read(fd, 64 * 1024)
        except BlockingIOError:
            return
        if not data:
            self.loop.unwatch(fd)
            os.close(fd)
            del self.pipes[fd]
            command.pipe = -1
            if command.exited_at is not None:
                self.finish(command)
            return
        if command.finished:
            return  # a process still holds the other end; it must not get SIGPIPE for that
        command.append(data)
        for task in command.watchers:
            self.loop.wake(task)

    def feed(self, command: RunningCommand) -> None:
        try:
            sent = os.write(command.stdin_fd, command.stdin[: 64 * 1024])
            command.stdin = command.stdin[sent:]
            if command.stdin:
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.loop.unwatch(command.stdin_fd)
        os.close(command.stdin_fd)
        command.stdin_fd, command.stdin = -1, memoryview(b"")

    def reap(self) -> None:
        """Take what has ended: commands get their result, and orphans their owner."""
        self.collect()
        ended, self.ended = self.ended, []
        for command in ended:
            if command.stdin_fd >= 0:
                command.stdin = memoryview(b"")
                self.feed(command)
            if command.pipe < 0:
                self.finish(command)

    def collect(self) -> None:
        """Wait for all processes that have ended, and adopt what they left to the agent."""
        owners: set[RunningCommand] = set()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.children = False
                return
            if pid == 0:
                break
            command = self.by_pid.pop(pid, None)
            if command is None:
                owners |= self.orphans.pop(pid, set())
                continue
            if os.WIFSIGNALED(status):
                command.signal = os.WTERMSIG(status)
            else:
                command.exit_code = os.WEXITSTATUS(status)
            command.exited_at = time.monotonic()
            owners.add(command)
            self.ended.append(command)
        if owners:
            for process in self.strangers(processes()):
                by_session = {command for command in owners if command.pid == process.session}
                self.orphans[process.pid] = by_session or set(owners)

    def strangers(self, table: dict[int, Process]) -> list[Process]:
        """Return the children of the agent that are neither commands nor adopted."""
        return [
            process
            for pid, process in table.items()
            if process.parent == 1 and pid not in self.by_pid and pid not in self.orphans
        ]

    def finish(self, command: RunningCommand) -> None:
        if command.finished or command.exited_at is None or command.killing:
            return
        if command.end_leftovers:
            command.end_leftovers = False
            if self.family(command):
                command.killing = True
                self.tidied.add(command)
                self.loop.start(self.end_leftovers(command))
                return
        command.finished = True
        command.disk_full = disk_is_full()
        command.ended = command.exited_at
        command.oom = command.oom or self.limits.oom_kills() > command.oom_mark
        self.finished.append(command)
        self.kept += len(command.head) + len(command.tail)
        while self.kept > KEPT_OUTPUT and len(self.finished) > 1:
            self.kept -= self.finished.popleft().forget_output()
        for task in command.watchers:
            self.loop.wake(task)
        command.watchers.clear()

    def family(self, command: RunningCommand) -> list[int]:
        """Return the command's process and all that came from it, whatever they changed about themselves.

        A command is the reaper of its descendants, which the seccomp filter keeps it from giving up. What outlives it
        comes to the agent when it ends, and belongs to what ended at that moment. If several commands ended at once,
        the session tells, or else it belongs to each of them.
        """
        self.collect()
        table = processes()
        for _ in range(100):
            if not self.strangers(table):
                break
            self.collect()  # a process ended meanwhile, and left its own
            table = processes()
        members = {pid for pid, owners in self.orphans.items() if command in owners and pid in table}
        if self.by_pid.get(command.pid) is command:
            members.add(command.pid)
        while True:
            more = {pid for pid, process in table.items() if pid not in members and process.parent in members}
            if not more:
                return sorted(members)
            members |= more

    def end(self, command: RunningCommand) -> None:
        if command.finished and not self.family(command):
            return
        if not command.killing:
            command.killing = True
            command.deadline = float("inf")
            self.loop.start(self.end_family(command))

    def end_leftovers(self, command: RunningCommand) -> Steps:
        """End what a command left running, once it had a moment to end by itself: it may be writing a file."""
        patience = time.monotonic() + LEFTOVER_S
        members = self.family(command)
        while members and time.monotonic() < patience:
            # More often than by the timer: processes that fork in a flood use all up for moments only.
            self.watch_limits()
            yield time.monotonic() + 0.02
            members = self.family(command)
        command.leftovers = len(members)
        yield from self.end_family(command)
        self.tidied.discard(command)

    def end_family(self, command: RunningCommand) -> Steps:
        """SIGTERM, grace, then stop everything before killing it, so that nothing can fork away meanwhile."""
        members = self.family(command)
        self.watch_limits()
        for pid in members:
            send_signal(pid, signal.SIGTERM)
            send_signal(pid, signal.SIGCONT)
        patience = time.monotonic() + GRACE_S
        while members and time.monotonic() < patience:
            yield time.monotonic() + 0.02
            members = self.family(command)
        for _ in range(50):
            if not members:
                break
            stopped: set[int] = set()
            while fresh := set(members) - stopped:
                for pid in fresh:
                    send_signal(pid, signal.SIGSTOP)
                stopped |= fresh
                if len(stopped) > 100_000:
                    break
                yield None
                members = self.family(command)
            for pid in stopped:
                send_signal(pid, signal.SIGKILL)
            yield time.monotonic() + 0.005
            members = self.family(command)
        if members:
            send_signal(-1, signal.SIGKILL)  # atomic in the kernel, where chasing was not enough
        command.killing = False
        self.reap()
        if command.exited_at is None:
            yield time.monotonic() + 0.05
            self.reap()
        if command.exited_at is None:
            command.exited_at, command.signal = time.monotonic(), int(signal.SIGKILL)
        if self.by_pid.pop(command.pid, None) is not None:
            self.orphans[command.pid] = {command}
        self.finish(command)
