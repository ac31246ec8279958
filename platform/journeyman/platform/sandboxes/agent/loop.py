"""The event loop: one thread that serves connections, steps tasks, and calls what is registered for descriptors and times."""

from __future__ import annotations

import _socket
import os
import select
import time

from .connections import Connection, Task
from .protocol import CHUNK, OpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from typing import Any, Final

    from .protocol import Steps

    Operation = Callable[[Connection, dict[str, Any], bytes], Steps]
    """Takes the connection, the header and the payload of a request's first frame."""
else:
    from _collections import deque

HIGH_WATER: Final = 512 * 1024
"""Bytes queued for a client at which its task waits."""
MAX_CONNECTIONS: Final = 128
MAX_QUEUED_FRAMES: Final = 8
TURN_S: Final = 0.02
MAX_LOG: Final = 64 * 1024


class Loop:
    """The loop and its connections. ``operations`` is filled in before :meth:`serve`."""

    def __init__(self, listen_fd: int, token: str, lease_s: float) -> None:
        self.token = token
        self.lease_end = time.monotonic() + lease_s
        self.operations: dict[str, Operation] = {}
        self.callbacks: dict[int, Callable[[], None]] = {}
        self.timers: list[tuple[Callable[[], float], Callable[[float], None]]] = []
        """Pairs: the next time at which something is due, and what is called in each turn with the time."""
        self.on_drop: list[Callable[[Task], None]] = []
        """Called with the task of a client that has gone."""
        self.ready: deque[Task] = deque()
        self.sleeping: set[Task] = set()
        self.connections: dict[int, Connection] = {}
        self.logged = 0
        self.epoll = select.epoll()
        self.listener = _socket.socket(fileno=listen_fd)
        self.listener.setblocking(False)
        self.watch(listen_fd, select.EPOLLIN, self.accept)

    def watch(self, fd: int, events: int, callback: Callable[[], None]) -> None:
        """Call back whenever a descriptor is ready."""
        self.callbacks[fd] = callback
        self.epoll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        del self.callbacks[fd]
        self.epoll.unregister(fd)

    def serve(self) -> None:
        """Run until the lease ends."""
        while True:
            now = time.monotonic()
            if now >= self.lease_end:
                return
            wait = 0.0 if self.ready else min(self.next_deadline(), self.lease_end) - now
            for fd, events in self.epoll.poll(max(0.0, min(wait, 3600.0))):
                self.handle(fd, events)
            self.run_timers(time.monotonic())
            budget = time.monotonic() + TURN_S
            for _ in range(len(self.ready)):
                task = self.ready.popleft()
                task.queued = False
                self.step(task, None)
                if time.monotonic() > budget:
                    break

    def handle(self, fd: int, events: int) -> None:
        connection = self.connections.get(fd)
        if connection is not None:
            if events & select.EPOLLOUT:
                self.flush(connection)
            if fd in self.connections and events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self.receive(connection)
        elif fd in self.callbacks:
            self.callbacks[fd]()

    def next_deadline(self) -> float:
        times = [task.wait for task in self.sleeping if isinstance(task.wait, float)]
        times += [due() for due, _ in self.timers]
        return min(times, default=float("inf"))

    def run_timers(self, now: float) -> None:
        for task in [task for task in self.sleeping if isinstance(task.wait, float) and task.wait <= now]:
            self.wake(task)
        for _, act in self.timers:
            act(now)

    def log(self, message: str) -> None:
        """Write to the file that the driver keeps; bounded, since commands may be able to provoke messages."""
        if self.logged < MAX_LOG:
            self.logged += len(message)
            os.write(2, f"{message}\n".encode("utf-8", "replace"))

    # tasks

    def start(self, gen: Steps) -> Task:
        """Start a task that serves no connection."""
        task = Task(gen, None)
        self.queue(task)
        return task

    def queue(self, task: Task) -> None:
        if not task.queued:
            task.queued = True
            self.ready.append(task)

    def wake(self, task: Task) -> None:
        """Let a task that waits for ``wake`` or a time go on next turn."""
        if task.wait not in {"frame", "drain"}:
            self.sleeping.discard(task)
            self.queue(task)

    def step(self, task: Task, value: Any) -> None:
        """Let a task go on, and see what it waits for next."""
        connection = task.connection
        if connection is not None and connection.task is not task:
            return  # the client has gone
        try:
            task.wait = task.gen.send(value)
            while task.wait == "frame" and connection is not None and connection.frames:
                task.wait = task.gen.send(connection.frames.popleft())
        except StopIteration:
            self.done(task)
        except OpError as error:
            if connection is not None:
                connection.send({"error": error.code, "message": str(error), "details": error.details})
            self.done(task)
        except Exception as error:  # noqa: BLE001  one broken request must not end the sandbox
            self.log(f"{type(error).__name__}: {error}")
            if connection is not None:
                connection.send({"error": "internal", "message": f"{type(error).__name__}: {error}"})
            self.done(task)
        else:
            if connection is not None and task.wait != "frame" and len(connection.out) > HIGH_WATER:
                task.wait = "drain"  # a slow reader waits for itself only
            elif task.wait is None:
                self.queue(task)
            elif isinstance(task.wait, float):
                self.sleeping.add(task)
        if connection is not None and connection.fd in self.connections:
            self.flush(connection)

    def done(self, task: Task) -> None:
        self.sleeping.discard(task)
        if task.connection is not None and task.connection.task is task:
            task.connection.task = None
            self.dispatch(task.connection)

    # connections

    def accept(self) -> None:
        while True:
            if len(self.connections) >= MAX_CONNECTIONS:
                self.epoll.modify(self.listener.fileno(), 0)  # the others wait in the backlog
                return
            try:
                fd, _ = self.listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001  socket.py takes 10 ms to import
            except OSError:
                return
            sock = _socket.socket(fileno=fd)
            sock.setblocking(False)
            connection = Connection(sock)
            self.connections[fd] = connection
            connection.mask = select.EPOLLIN
            self.epoll.register(fd, connection.mask)

    def receive(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and connection.receive(data):
            self.dispatch(connection)
        else:
            self.drop(connection)

    def dispatch(self, connection: Connection) -> None:
        """Hand the next frame to the task that waits for it, or start the request that it begins."""
        task = connection.task
        if task is not None and task.wait == "frame" and connection.frames and not task.queued:
            self.step(task, connection.frames.popleft())
        elif task is None and connection.frames:
            header, payload = connection.frames.popleft()
            operation = self.operations.get(str(header.get("op")))
            if header.get("token") != self.token:
                connection.send({"error": "unauthorized", "message": "wrong token"})
                self.flush(connection)
            elif operation is None:
                connection.send({"error": "unknown_op", "message": "unknown operation"})
                self.flush(connection)
            else:
                connection.task = Task(operation(connection, header, payload), connection)
                self.step(connection.task, None)
        if connection.fd in self.connections:
            self.interest(connection)

    def interest(self, connection: Connection) -> None:
        mask = 0 if len(connection.frames) > MAX_QUEUED_FRAMES else select.EPOLLIN
        if connection.out:
            mask |= select.EPOLLOUT
        if mask != connection.mask:
            connection.mask = mask
            self.epoll.modify(connection.fd, mask)

    def flush(self, connection: Connection) -> None:
        try:
            while connection.out:
                sent = connection.sock.send(connection.out[:CHUNK])
                del connection.out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.drop(connection)
            return
        self.interest(connection)
        task = connection.task
        if len(connection.out) <= HIGH_WATER // 2 and task is not None and task.wait == "drain":
            self.queue(task)

    def drop(self, connection: Connection) -> None:
        """Close a connection and its request."""
        if self.connections.pop(connection.fd, None) is None:
            return
        self.epoll.unregister(connection.fd)
        connection.sock.close()
        if len(self.connections) == MAX_CONNECTIONS - 1:
            self.epoll.modify(self.listener.fileno(), select.EPOLLIN)
        task, connection.task = connection.task, None
        if task is not None:
            self.sleeping.discard(task)
            for forget in self.on_drop:
                forget(task)
            task.gen.close()
