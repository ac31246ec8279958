"""The seccomp filter of a sandbox, assembled here so that no library is needed.

Deny list with errors that programs expect (``EPERM``, or ``ENOSYS`` where a fallback exists), and ``ENOSYS`` for every
system call newer than this file: what is unknown is not allowed. A call through another ABI (i386, x32) kills the
process. Numbers: ``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h`` of Linux 6.15.
"""

import errno
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_NEWEST = 467
"""The last system call known here (``open_tree_attr``)."""

_LD, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCH = 0, 4
_ALLOW, _KILL = 0x7FFF0000, 0x80000000

# name: (x86_64, aarch64); None where the architecture has no such call
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_ABSENT: dict[str, tuple[int | None, int | None]] = {
    "clone3": (435, 435),  # its flags are behind a pointer; libraries fall back to clone
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
}
_UNACCOUNTED: dict[str, tuple[int | None, int | None]] = {
    # Memory that belongs to no process: without a control group nothing would count it.
    "memfd_create": (319, 279),
    "shmget": (29, 194),
}
_CLONE, _SOCKET, _IOCTL, _PERSONALITY, _PRCTL = (56, 220), (41, 198), (16, 29), (135, 92), (157, 167)
_PR_SET_CHILD_SUBREAPER = 36
# The agent is process 1 and has the same uid: these must not be turned against it. Index of the pid argument.
_ABOUT_A_PROCESS: dict[str, tuple[tuple[int, int], int]] = {
    "ioprio_set": ((251, 30), 1),
    "prlimit64": ((302, 261), 0),
    "sched_setattr": ((314, 274), 0),
    "sched_setparam": ((142, 118), 0),
    "sched_setscheduler": ((144, 119), 0),
    "setpriority": ((141, 140), 1),
}
_NEW_NAMESPACES = 0x7E020080
"""``CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}`` and, in the byte of the signal, nothing a real call uses (``NEWTIME``)."""

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_TERMINAL_INJECTION = (0x5412, 0x541C, 0x5423)
"""``TIOCSTI``, ``TIOCLINUX``, ``TIOCSETD``."""


@dataclass(frozen=True, slots=True)
class _Instruction:
    code: int
    k: int
    true: int = 0
    false: int = 0

    def pack(self) -> bytes:
        return struct.pack("=HBBI", self.code, self.true, self.false, self.k & 0xFFFFFFFF)


def _error(number: int) -> int:
    return 0x00050000 | number


def _low(argument: int) -> int:
    """Offset of the low 32 bits of an argument, on little-endian machines."""
    return 16 + 8 * argument


class _Program:
    def __init__(self) -> None:
        self.body: list[_Instruction] = []

    def add(self, *instructions: _Instruction) -> None:
        self.body.extend(instructions)

    def deny(self, number: int, error: int) -> None:
        self.add(_Instruction(_JEQ, number, 0, 1), _Instruction(_RET, _error(error)))

    def when(self, number: int, rule: Iterable[_Instruction]) -> None:
        """Rules about the arguments of one call; they end with a return, or fall out and allow it."""
        block = [*rule, _Instruction(_RET, _ALLOW)]
        self.add(_Instruction(_JEQ, number, 0, len(block)), *block)


def _allow_only(argument: int, values: Iterable[int], error: int, mask: int = 0xFFFFFFFF) -> list[_Instruction]:
    """Fall out when the argument is one of the values, else return the error."""
    values = list(values)
    block = [_Instruction(_LD, _low(argument)), _Instruction(_AND, mask)]
    block += [_Instruction(_JEQ, value, len(values) - index) for index, value in enumerate(values)]
    block.append(_Instruction(_RET, _error(error)))
    return block


def _deny_values(argument: int, values: Iterable[int], error: int) -> list[_Instruction]:
    block = [_Instruction(_LD, _low(argument))]
    for value in values:
        block += [_Instruction(_JEQ, value, 0, 1), _Instruction(_RET, _error(error))]
    return block


def _socket_rule() -> list[_Instruction]:
    """UNIX; TCP and UDP over IPv4 and IPv6 (with ICMP echo and MPTCP's clean refusal); rtnetlink for listing addresses."""
    stream_or_datagram = (1, 2)
    inet = [
        *_allow_only(1, stream_or_datagram, errno.EPERM, mask=0xF),
        *_allow_only(2, (0, 1, 6, 17, 58), errno.EPROTONOSUPPORT),
        _Instruction(_RET, _ALLOW),
    ]
    netlink = [*_allow_only(2, (0,), errno.EPROTONOSUPPORT), _Instruction(_RET, _ALLOW)]
    return [
        _Instruction(_LD, _low(0)),
        _Instruction(_JEQ, _AF_UNIX, 0, 1),
        _Instruction(_RET, _ALLOW),
        _Instruction(_JEQ, _AF_INET, 1),
        _Instruction(_JEQ, _AF_INET6, 0, len(inet)),
        *inet,
        _Instruction(_JEQ, _AF_NETLINK, 0, len(netlink)),
        *netlink,
        _Instruction(_RET, _error(errno.EAFNOSUPPORT)),
    ]


def build_filter(machine: str | None = None, *, deny_unaccounted_memory: bool = False) -> bytes:
    """A classic BPF program for ``PR_SET_SECCOMP`` on ``x86_64`` or ``aarch64``.

    ``deny_unaccounted_memory``: also refuse memory that no process and no quota accounts for.
    Raises ``ValueError`` for another architecture.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        msg = f"no seccomp filter for the architecture {machine}"
        raise ValueError(msg)
    column = 0 if machine == "x86_64" else 1
    program = _Program()
    program.add(
        _Instruction(_LD, _ARCH),
        _Instruction(_JEQ, _AUDIT_ARCH[machine], 1),
        _Instruction(_RET, _KILL),
        _Instruction(_LD, _NUMBER),
    )
    if machine == "x86_64":
        program.add(_Instruction(_JGE, _X32_BIT, 0, 1), _Instruction(_RET, _KILL))
    program.add(_Instruction(_JGE, _NEWEST + 1, 0, 1), _Instruction(_RET, _error(errno.ENOSYS)))
    absent = _ABSENT | (_UNACCOUNTED if deny_unaccounted_memory else {})
    for calls, error in ((_CALLS, errno.EPERM), (absent, errno.ENOSYS)):
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                program.deny(number, error)
    program.when(
        _CLONE[column],
        [
            _Instruction(_LD, _low(0)),
            _Instruction(_JSET, _NEW_NAMESPACES & ~0xFF, 0, 1),
            _Instruction(_RET, _error(errno.EPERM)),
        ],
    )
    program.when(_SOCKET[column], _socket_rule())
    program.when(_IOCTL[column], _deny_values(1, _TERMINAL_INJECTION, errno.EPERM))
    program.when(_PERSONALITY[column], _allow_only(0, (0, 0xFFFFFFFF), errno.EPERM))
    # A command stays the reaper of all that comes from it, so that nothing can leave it.
    program.when(
        _PRCTL[column],
        [
            _Instruction(_LD, _low(0)),
            _Instruction(_JEQ, _PR_SET_CHILD_SUBREAPER, 0, 3),
            _Instruction(_LD, _low(1)),
            _Instruction(_JEQ, 0, 0, 1),
            _Instruction(_RET, _error(errno.EPERM)),
        ],
    )
    for name, (both, argument) in _ABOUT_A_PROCESS.items():
        rule = _deny_values(argument, (1,), errno.EPERM)
        if name in {"setpriority", "ioprio_set"}:
            # "which": a single process only, never all of a user or of a group
            rule += _allow_only(0, (0,) if name == "setpriority" else (1,), errno.EPERM)
        program.when(both[column], rule)
    program.add(_Instruction(_RET, _ALLOW))
    return b"".join(instruction.pack() for instruction in program.body)
