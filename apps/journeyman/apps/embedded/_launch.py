"""Started as a file in an isolated interpreter: prepares a child process, then becomes the given program.

    python -I -S _launch.py PARENT_PID DEATH_SIGNAL IDENTITY PORTS PROGRAM ARG…

The kernel sends DEATH_SIGNAL when the supervisor dies, so that even ``kill -9`` leaves nothing behind. With an IDENTITY
other than ``-`` (a uid) the program runs in a user namespace that shows the caller as that uid: PostgreSQL refuses to
run as root, and this way needs neither a system user nor permissions for one below root's home.

With PORTS other than ``-`` (numbers separated by commas) the program runs in a network namespace of its own, as a child of
this process, which then stays as the gate (``_gate.py``) to those ports. The program dies when the gate does.

This happens here and not in a ``preexec_fn`` because forking a process that has threads may deadlock.
"""

import ctypes
import os
import sys

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9

TYPE_CHECKING = False
_libc = ctypes.CDLL(None, use_errno=True)


def enter_user_namespace(identity: str, *, further: int = 0) -> None:
    """Be shown as that uid, in a namespace where we may do all. ``further``: namespaces to make with it."""
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWUSER | further) != 0:
        number = ctypes.get_errno()
        sys.exit(f"This machine refuses user namespaces ({os.strerror(number)}).")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{identity} {uid} 1"),
        ("gid_map", f"{identity} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123  pathlib would double the start-up time
            file.write(text)


def enter_network_namespace() -> None:
    """One with nothing but a loopback interface, which is brought up."""
    import fcntl
    import socket
    import struct

    if _libc.unshare(_CLONE_NEWNET) != 0:
        enter_user_namespace(str(os.geteuid()), further=_CLONE_NEWNET)
    with socket.socket() as any_socket:
        interface_up = struct.pack("16sh14x", b"lo", 1)
        fcntl.ioctl(any_socket, 0x8914, interface_up)  # SIOCSIFFLAGS


def die_with(parent: int, number: int) -> None:
    # After a change of identity, which clears it.
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("The supervisor died before this process started.")


def serve_gate(ports: list[int], parent: int, death_signal: int, argv: list[str]) -> None:
    sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120  pathlib, see above
    if TYPE_CHECKING:
        from journeyman.apps.embedded import _gate
    else:
        import _gate

    uid = os.geteuid()
    os.umask(0o077)  # some put Unix sockets into /tmp
    listeners, accounts = _gate.listen(ports), _gate.Accounts()  # of the machine: made before we leave it
    enter_network_namespace()
    die_with(parent, death_signal)
    me = os.getpid()
    program = os.fork()
    if program == 0:
        die_with(me, _SIGKILL)
        os.execv(argv[0], argv)  # noqa: S606  no shell is the point
    _gate.serve(listeners, accounts, uid, program)


def main() -> None:
    parent, death_signal, identity, ports, *argv = sys.argv[1:]
    if identity != "-":
        enter_user_namespace(identity)
    if ports != "-":
        serve_gate([int(port) for port in ports.split(",")], int(parent), int(death_signal), argv)
    die_with(int(parent), int(death_signal))
    os.execv(argv[0], argv)  # noqa: S606  no shell is the point


if __name__ == "__main__":
    main()
