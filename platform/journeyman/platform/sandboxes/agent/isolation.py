"""What happens once, before anything of the task runs: from the privileges that bubblewrap left to none."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAP_AMBIENT = 4, 24, 38, 22, 47
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWUSER = 0x10000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_RDONLY, MS_REMOUNT, MS_BIND = 2, 4, 8, 1, 32, 4096
MNT_DETACH = 2
MASKED = ("/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/sched_debug", "/proc/timer_list", "/proc/latency_stats")


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    check(
        libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount {target}",
    )


def build_scratch(config: dict[str, Any]) -> None:
    """One size-limited tmpfs behind all writable directories: bytes and inodes run out together, and only here."""
    scratch = "/scratch"
    size, inodes = int(config["disk_bytes"]), int(config["inodes"])
    mount("scratch", scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},nr_inodes={inodes},mode=0755")
    owner = int(config["outer_uid"])
    for name, target, mode in (
        ("workspace", "/workspace", 0o755),
        ("artifacts", "/artifacts", 0o755),
        ("tmp", "/tmp", 0o1777),  # noqa: S108  a private one
        ("home", str(config["home"]), 0o755),
        ("shm", "/dev/shm", 0o1777),  # noqa: S108  a private one
    ):
        source = f"{scratch}/{name}"
        os.mkdir(source)
        os.chmod(source, mode)
        os.chown(source, owner, owner)
        mount(source, target, None, MS_BIND)
    check(libc.umount2(scratch.encode(), MNT_DETACH), "umount /scratch")
    for path in MASKED:
        if os.path.exists(path):
            mount("/dev/null", path, None, MS_BIND)


def hide_agent() -> None:
    """Cover ``/proc/1``. Some files there may be written by the agent's uid, which is also that of the commands."""
    mount("/scratch", "/proc/1", None, MS_BIND)


def write_file(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def enter_user_namespace(outer_uid: int, inner_uid: int) -> None:
    """Enter a user namespace that owns none of the mounts, with one uid in it.

    The map is written by a helper that stays behind with its privileges: inside, there are none to write it with.
    """
    me = os.getpid()
    start_read, start_write = os.pipe()
    done_read, done_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.read(start_read, 1)
            write_file(f"/proc/{me}/uid_map", f"{inner_uid} {outer_uid} 1")
            write_file(f"/proc/{me}/gid_map", f"{inner_uid} {outer_uid} 1")
            hide_agent()
            os.write(done_write, b"k")
        finally:
            os._exit(0)
    os.close(done_write)
    try:
        check(libc.unshare(CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")
        os.write(start_write, b"x")
        if os.read(done_read, 1) != b"k":
            raise OSError(errno.EPERM, "the uid map of the sandbox could not be written")
    finally:
        for fd in (start_read, start_write, done_read):
            os.close(fd)
        os.waitpid(helper, 0)
    try:
        os.setgroups([])
    except PermissionError:
        pass  # an ordinary user's namespace may not; its groups own nothing that is visible here
    os.setresgid(inner_uid, inner_uid, inner_uid)
    os.setresuid(inner_uid, inner_uid, inner_uid)
    try:
        write_file("/proc/sys/user/max_user_namespaces", "0")
    except OSError:
        pass  # the seccomp filter refuses new user namespaces as well


def drop_privileges() -> None:
    """Give up every capability for good."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    libc.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)
    check(libc.capset(header, bytes(24)), "capset")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def install_filter(program: bytes) -> None:
    """Apply a seccomp program to this process and all that come from it."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def isolate(config: dict[str, Any]) -> None:
    """From the privileges bubblewrap left to none at all. Raises ``OSError`` when a step is not possible."""
    keyctl = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if keyctl is not None:
        libc.syscall(ctypes.c_long(keyctl), ctypes.c_long(1), None)  # a session keyring of its own
    build_scratch(config)
    if config.get("affinity"):
        os.sched_setaffinity(0, config["affinity"])
    if config.get("nice"):
        os.setpriority(os.PRIO_PROCESS, 0, int(config["nice"]))
    enter_user_namespace(int(config["outer_uid"]), int(config["inner_uid"]))
    drop_privileges()
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    install_filter(bytes.fromhex(config["seccomp"]))
