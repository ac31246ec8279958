"""The filter, run by a small interpreter of classic BPF, for both architectures."""

import errno
import struct

import pytest

from journeyman.platform.sandboxes import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(program: bytes, number: int, *arguments: int, arch: int) -> int:
    data = struct.pack("<IIQ6Q", number, arch, 0, *(arguments + (0,) * 6)[:6])
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator = at = 0
    while True:
        operation, true, false, k = code[at]
        at += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, k)[0]
            case 0x54:
                accumulator &= k
            case 0x15:
                at += true if accumulator == k else false
            case 0x35:
                at += true if accumulator >= k else false
            case 0x45:
                at += true if accumulator & k else false
            case 0x06:
                return k
            case _:
                raise AssertionError(hex(operation))


def denied(number: int) -> int:
    return 0x50000 | number


@pytest.mark.parametrize("machine", ARCHES)
class TestFilter:
    def check(self, machine: str, calls: tuple[int | None, int | None], *arguments: int, **options) -> int:
        number = calls[0 if machine == "x86_64" else 1]
        assert number is not None
        return verdict(seccomp.build_filter(machine, **options), number, *arguments, arch=ARCHES[machine])

    def test_everything_listed_is_refused_and_nothing_doubled(self, machine: str):
        numbers = [both[0 if machine == "x86_64" else 1] for both in (seccomp._CALLS | seccomp._ABSENT).values()]
        known = [number for number in numbers if number is not None]
        assert len(known) == len(set(known))
        for name, both in seccomp._CALLS.items():
            if both[0 if machine == "x86_64" else 1] is not None:
                assert self.check(machine, both) == denied(errno.EPERM), name
        for both in seccomp._ABSENT.values():
            assert self.check(machine, both) == denied(errno.ENOSYS)

    def test_ordinary_calls_are_allowed(self, machine: str):
        for calls in ((0, 63), (1, 64), (59, 221), (257, 56), (9, 222), (60, 93)):  # read write execve openat mmap exit
            assert self.check(machine, calls) == ALLOW

    def test_another_architecture_is_killed(self, machine: str):
        program = seccomp.build_filter(machine)
        assert verdict(program, 0, arch=0x40000003) == KILL
        assert verdict(program, 500, arch=ARCHES[machine]) == denied(errno.ENOSYS)
        x32 = verdict(program, 0x40000000 | 1, arch=ARCHES[machine])
        assert x32 == (KILL if machine == "x86_64" else denied(errno.ENOSYS))

    def test_clone(self, machine: str):
        assert self.check(machine, seccomp._CLONE, 17) == ALLOW
        assert self.check(machine, seccomp._CLONE, 0x3D0F00) == ALLOW  # a thread
        for flag in (0x10000000, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000):
            assert self.check(machine, seccomp._CLONE, flag | 17) == denied(errno.EPERM)

    def test_socket(self, machine: str):
        def socket(*arguments: int) -> int:
            return self.check(machine, seccomp._SOCKET, *arguments)

        assert socket(1, 5) == ALLOW
        assert socket(2, 1 | 0o2000000, 6) == socket(10, 2, 17) == socket(2, 2, 1) == ALLOW
        assert socket(2, 3, 1) == denied(errno.EPERM)
        assert socket(2, 1, 132) == denied(errno.EPROTONOSUPPORT)
        assert socket(16, 3, 0) == ALLOW
        assert socket(16, 3, 9) == denied(errno.EPROTONOSUPPORT)
        for family in (17, 29, 31, 38, 40, 44):
            assert socket(family, 1) == denied(errno.EAFNOSUPPORT)

    def test_the_agent_is_spared(self, machine: str):
        for name, (both, argument) in seccomp._ABOUT_A_PROCESS.items():
            arguments = [1 if name == "ioprio_set" else 0, 0, 0]
            arguments[argument] = 1
            assert self.check(machine, both, *arguments) == denied(errno.EPERM), name
            arguments[argument] = 0
            assert self.check(machine, both, *arguments) == ALLOW, name
        assert self.check(machine, seccomp._ABOUT_A_PROCESS["setpriority"][0], 2, 0) == denied(errno.EPERM)

    def test_terminal_and_personality(self, machine: str):
        assert self.check(machine, seccomp._IOCTL, 0, 0x5412) == denied(errno.EPERM)
        assert self.check(machine, seccomp._IOCTL, 0, 0x5401) == ALLOW
        assert self.check(machine, seccomp._PERSONALITY, 0xFFFFFFFF) == ALLOW
        assert self.check(machine, seccomp._PERSONALITY, 0x40000) == denied(errno.EPERM)

    def test_memory_that_nothing_counts(self, machine: str):
        for both in seccomp._UNACCOUNTED.values():
            assert self.check(machine, both) == ALLOW
            assert self.check(machine, both, deny_unaccounted_memory=True) == denied(errno.ENOSYS)


def test_unknown_machine():
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.build_filter("riscv64")
