"""Part of the launcher: the way into a server that runs in a network namespace of its own.

Some servers of the embedded stack ask for no credentials (Temporal, SeaweedFS's inner ports, the embeddings). They run
where nobody can reach them; the gate listens on the machine's loopback in their place, and hands connections of our own
account and of root on to them byte by byte. Others are closed at once. Who connects is asked of the kernel (``sock_diag``).
"""

import errno
import os
import select
import signal
import socket
import struct
import sys

_PIECE = 256 * 1024
_SOCK_DIAG_BY_FAMILY = 20
_NETLINK_SOCK_DIAG = 4
_ESTABLISHED = 1
_NO_COOKIE = b"\xff" * 8


class Accounts:
    """Tells whose end of a TCP connection on loopback is. Made in the network namespace that it asks about."""

    def __init__(self) -> None:
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        self._kernel.bind((0, 0))
        self._kernel.settimeout(5)
        self._asked = 0

    def owner(self, client: tuple[str, int], server: tuple[str, int]) -> int | None:
        """The uid of the client's end; ``None`` when it is closed already, since nobody owns what is left of it then."""
        body = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        body += struct.pack(">HH", client[1], server[1])
        body += socket.inet_aton(client[0]) + bytes(12) + socket.inet_aton(server[0]) + bytes(12)
        body += bytes(4) + _NO_COOKIE
        self._asked = (self._asked + 1) % 2**32
        self._kernel.send(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, 1, self._asked, 0) + body)
        kind, sequence, answer = 0, -1, b""
        while sequence != self._asked:
            answer = self._kernel.recv(8192)
            kind, _, sequence = struct.unpack_from("=HHI", answer, 4)
        if kind != _SOCK_DIAG_BY_FAMILY:
            return None
        state = answer[17]
        uid, inode = struct.unpack_from("=II", answer, 16 + 64)
        return uid if inode and state == _ESTABLISHED else None


class End:
    """One of two connected ends: what waits to be sent to it, and whether more comes from it."""

    __slots__ = ("closing", "mask", "open", "other", "sock", "waiting")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.other = self
        self.mask = 0
        self.waiting = b""
        self.open = True
        """It may still send."""
        self.closing = False
        """Once ``waiting`` is empty, nothing more is sent to it."""


class Gate:
    """Serves until the program ends, whose process id it is given. One thread."""

    def __init__(self, listeners: list[socket.socket], accounts: Accounts, uid: int) -> None:
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._accounts = accounts
        self._allowed = {uid, 0}
        self._told: set[int | None] = set()
        self._ends: dict[int, End] = {}
        self._epoll = select.epoll()
        for listener in listeners:
            listener.setblocking(False)
            self._epoll.register(listener.fileno(), select.EPOLLIN)

    def serve(self, program: int) -> int:
        """Returns the program's wait status."""
        ended = os.pidfd_open(program)
        self._epoll.register(ended, select.EPOLLIN)
        while True:
            for fd, events in self._epoll.poll():
                if fd == ended:
                    return os.waitpid(program, 0)[1]
                if fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif fd in self._ends:
                    self._move(self._ends[fd], events)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, client = listener.accept()
        except OSError:
            return
        server = sock.getsockname()
        try:
            owner = self._accounts.owner(client, server)
        except OSError:
            owner = None
        if owner not in self._allowed:
            sock.close()
            if owner not in self._told and len(self._told) < 100:
                self._told.add(owner)
                sys.stderr.write(f"refused a connection to port {server[1]} of uid {owner}\n")
                sys.stderr.flush()
            return
        inner = socket.socket()
        for one in (sock, inner):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if inner.connect_ex(server) not in {0, errno.EINPROGRESS}:
            sock.close()
            inner.close()
            return
        outside, inside = End(sock), End(inner)
        outside.other, inside.other = inside, outside
        for end in (outside, inside):
            self._ends[end.sock.fileno()] = end
            self._watch(end)

    def _move(self, end: End, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self._flush(end)
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and end.open and not end.other.waiting:
                data = end.sock.recv(_PIECE)
                if data:
                    end.other.waiting = data
                else:
                    end.open = False
                    end.other.closing = True
                self._flush(end.other)
            elif events & (select.EPOLLHUP | select.EPOLLERR) and not end.open:
                self._close(end)
                return
        except BlockingIOError:
            pass
        except OSError:
            self._close(end)
            return
        if not end.open and not end.other.open and not end.waiting and not end.other.waiting:
            self._close(end)
            return
        self._watch(end)
        self._watch(end.other)

    @staticmethod
    def _flush(end: End) -> None:
        if end.waiting:
            try:
                end.waiting = end.waiting[end.sock.send(end.waiting) :]
            except BlockingIOError:
                return
        if end.closing and not end.waiting:
            end.closing = False
            end.sock.shutdown(socket.SHUT_WR)

    def _watch(self, end: End) -> None:
        mask = select.EPOLLIN if end.open and not end.other.waiting else 0
        if end.waiting:
            mask |= select.EPOLLOUT
        # Not registered at all where nothing is wanted: the end of a connection would be reported again and again.
        if mask and end.mask:
            self._epoll.modify(end.sock.fileno(), mask)
        elif mask:
            self._epoll.register(end.sock.fileno(), mask)
        elif end.mask:
            self._epoll.unregister(end.sock.fileno())
        end.mask = mask

    def _close(self, end: End) -> None:
        for one in (end, end.other):
            if self._ends.pop(one.sock.fileno(), None) is not None:
                one.sock.close()  # which also takes it out of the epoll set


def listen(ports: list[int]) -> list[socket.socket]:
    return [socket.create_server(("127.0.0.1", port), backlog=512) for port in ports]


def serve(listeners: list[socket.socket], accounts: Accounts, uid: int, program: int) -> None:
    """Be the program as far as the supervisor can see: pass signals on to it, and end as it ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, _frame: os.kill(program, number))
    status = Gate(listeners, accounts, uid).serve(program)
    if os.WIFSIGNALED(status):
        cause = os.WTERMSIG(status)
        if cause != signal.SIGKILL:
            signal.signal(cause, signal.SIG_DFL)
        os.kill(os.getpid(), cause)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
