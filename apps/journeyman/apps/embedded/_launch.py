"""Started as a file in an isolated interpreter: prepares a child process, then becomes the given program.

    python -I -S _launch.py PARENT_PID DEATH_SIGNAL IDENTITY PROGRAM ARG…

The kernel sends DEATH_SIGNAL when the supervisor dies, so that even ``kill -9`` leaves nothing behind. With an IDENTITY
other than ``-`` (a uid) the program runs in a user namespace that shows the caller as that uid: PostgreSQL refuses to
run as root, and this way needs neither a system user nor permissions for one below root's home.

This happens here and not in a ``preexec_fn`` because forking a process that has threads may deadlock.
"""

import ctypes
import os
import sys

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, death_signal, identity, *argv = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if identity != "-":
        uid, gid = os.geteuid(), os.getegid()
        if libc.unshare(_CLONE_NEWUSER) != 0:
            number = ctypes.get_errno()
            sys.exit(f"This machine refuses user namespaces ({os.strerror(number)}).")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{identity} {uid} 1"),
            ("gid_map", f"{identity} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123  pathlib would double the start-up time
                file.write(text)
    # After the change of identity, which clears it.
    libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("The supervisor died before this process started.")
    os.execv(argv[0], argv)  # noqa: S606  no shell is the point


if __name__ == "__main__":
    main()
