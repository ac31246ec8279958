"""Attacks from inside: what must not be reachable, and what must not be possible. As real commands in a real sandbox."""

import json
import os
import platform
import socket
import threading
import uuid
from pathlib import Path

import pytest

from journeyman.platform.sandboxes import seccomp
from journeyman.platform.sandboxes.port import Sandbox, SandboxDriver, SandboxSpec
from support.sandboxes import SMALL, python, shell

COLUMN = 0 if platform.machine() == "x86_64" else 1

SYSCALL = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "ok"
"""


async def answer(sandbox: Sandbox, source: str):
    result = await python(sandbox, SYSCALL + source)
    assert result.exit_code == 0, result.output.decode()
    return json.loads(result.output)


class TestSystemCalls:
    async def test_everything_on_the_list_is_refused(self, sandbox: Sandbox):
        numbers = {name: both[COLUMN] for name, both in (seccomp._CALLS | seccomp._ABSENT).items() if both[COLUMN]}
        got = await answer(
            sandbox, f"import json\nprint(json.dumps({{n: call(v, 0, 0, 0, 0, 0) for n, v in {numbers!r}.items()}}))"
        )
        assert {name for name in seccomp._CALLS if name in numbers and got[name] != "EPERM"} == set()
        assert {name for name in seccomp._ABSENT if got[name] != "ENOSYS"} == set()

    async def test_unknown_calls_do_not_exist(self, sandbox: Sandbox):
        assert await answer(sandbox, "print('\"' + call(500) + '\"')") == "ENOSYS"

    async def test_no_new_namespaces(self, sandbox: Sandbox):
        clone = seccomp._CLONE[COLUMN]
        flags = [0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000]
        got = await answer(
            sandbox, f"import json\nprint(json.dumps([call({clone}, f | 17, 0, 0, 0, 0) for f in {flags}]))"
        )
        assert got == ["EPERM"] * len(flags)
        for option in "Umnpiu":
            assert (await shell(sandbox, f"unshare -{option} true")).exit_code != 0
        assert (await shell(sandbox, "nsenter -t 1 -m true")).exit_code != 0

    async def test_sockets(self, sandbox: Sandbox):
        got = await answer(
            sandbox,
            """
import json, socket
def attempt(*arguments):
    try:
        socket.socket(*arguments).close()
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]
print(json.dumps({
    "tcp": attempt(socket.AF_INET, socket.SOCK_STREAM), "tcp6": attempt(socket.AF_INET6, socket.SOCK_STREAM),
    "udp": attempt(socket.AF_INET, socket.SOCK_DGRAM), "unix": attempt(socket.AF_UNIX, socket.SOCK_STREAM),
    "route": attempt(socket.AF_NETLINK, socket.SOCK_RAW, 0), "audit": attempt(socket.AF_NETLINK, socket.SOCK_RAW, 9),
    "raw": attempt(socket.AF_INET, socket.SOCK_RAW, 1), "packet": attempt(socket.AF_PACKET, socket.SOCK_RAW, 0),
    "vsock": attempt(socket.AF_VSOCK, socket.SOCK_STREAM), "alg": attempt(38, 5), "can": attempt(29, 3, 1),
    "sctp": attempt(socket.AF_INET, socket.SOCK_STREAM, 132), "bluetooth": attempt(31, 3, 0),
}))
""",
        )
        allowed = {"tcp", "tcp6", "udp", "unix", "route"}
        assert {name for name, result in got.items() if result == "ok"} == allowed, got

    async def test_terminal_injection(self, sandbox: Sandbox):
        got = await answer(
            sandbox,
            """
import fcntl, json, pty
master, slave = pty.openpty()
results = []
for request in (0x5412, 0x541C):
    try:
        fcntl.ioctl(slave, request, b"x")
        results.append("ok")
    except OSError as error:
        results.append(errno.errorcode[error.errno])
print(json.dumps(results))
""",
        )
        assert got == ["EPERM", "EPERM"]
        assert (await shell(sandbox, "tty; echo > /dev/tty")).exit_code != 0

    async def test_i386_calls_kill(self, sandbox: Sandbox):
        if platform.machine() != "x86_64":
            pytest.skip("another ABI exists on x86_64 only")
        # mov eax, 20 (getpid of i386); int 0x80; ret
        result = await python(
            sandbox,
            """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print(ctypes.CFUNCTYPE(ctypes.c_int)(address)(), flush=True)
""",
        )
        assert result.signal == 31 or result.exit_code == 159 or result.signal == 11  # SIGSYS, or no such ABI at all
        x32 = await python(sandbox, SYSCALL + "print(call(0x40000000 | 39))")
        assert x32.signal == 31

    async def test_clock_and_host_name(self, sandbox: Sandbox):
        assert (await shell(sandbox, "date -s 2001-01-01")).exit_code != 0
        assert (await shell(sandbox, "hostname evil")).exit_code != 0
        assert (await shell(sandbox, "hostname")).output == b"sandbox\n"


class TestPrivileges:
    async def test_none_are_left(self, sandbox: Sandbox):
        status = (await shell(sandbox, "cat /proc/self/status")).output.decode()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert fields["Uid"].split() == ["1000"] * 4

    async def test_another_uid_on_the_host(self, driver: SandboxDriver, sandbox: Sandbox, sandbox_root: Path):
        uids = set()
        for name in (sandbox.id, (await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))).id):
            record = json.loads((sandbox_root / name / "meta.json").read_text())
            uids.add(_uid_of(record["agent"]["pid"]))
            if name != sandbox.id:
                await driver.release(name)
        if os.geteuid() == 0:
            assert 0 not in uids
            assert len(uids) == 2
        else:
            assert uids == {os.geteuid()}

    async def test_setuid_programs_give_nothing(self, sandbox: Sandbox):
        assert (await shell(sandbox, "su -c true || sudo -n true || mount -t tmpfs x /tmp")).exit_code != 0
        assert (await shell(sandbox, "cp $(command -v sleep) s; chmod 6755 s; ./s 0; id -u")).output.endswith(b"1000\n")
        assert (await shell(sandbox, "findmnt -rno OPTIONS / /usr /workspace | grep -vc nosuid")).output == b"0\n"

    async def test_other_namespaces_than_the_host(self, sandbox: Sandbox):
        inside = (
            (await shell(sandbox, "readlink /proc/self/ns/{user,pid,mnt,ipc,uts,net,cgroup}")).output.decode().split()
        )
        host = [os.readlink(f"/proc/self/ns/{name}") for name in ("user", "pid", "mnt", "ipc", "uts", "net", "cgroup")]
        assert len(inside) == 7
        assert not set(inside) & set(host)


class TestAgent:
    async def test_survives_kill_all(self, sandbox: Sandbox):
        result = await shell(sandbox, "kill -9 -1; kill -9 1; kill -INT 1; kill -STOP 1; kill -TERM 1")
        assert result.signal == 9 or result.exit_code is not None
        await sandbox.ping()
        assert (await shell(sandbox, "echo alive")).output == b"alive\n"

    async def test_cannot_be_read_or_changed(self, sandbox: Sandbox):
        for path in ("mem", "environ", "fd", "cwd", "root", "exe", "auxv", "maps", "task"):
            assert (await shell(sandbox, f"head -c 1 /proc/1/{path} || ls /proc/1/{path}/")).exit_code != 0, path
        assert (await shell(sandbox, "echo 1000 > /proc/1/oom_score_adj")).exit_code != 0
        got = await answer(
            sandbox,
            """
import json, resource
results = []
for attempt in (
    lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)),
    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
    lambda: os.setpriority(os.PRIO_PGRP, 0, 19),
    lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
):
    try:
        attempt()
        results.append("ok")
    except OSError as error:
        results.append(errno.errorcode[error.errno])
print(json.dumps(results))
""",
        )
        assert got == ["EPERM"] * 5

    async def test_dies_after_commands_do(self, sandbox: Sandbox, sandbox_root: Path):
        record = json.loads((sandbox_root / sandbox.id / "meta.json").read_text())
        agents = int(Path(f"/proc/{record['agent']['pid']}/oom_score_adj").read_text())
        commands = int((await shell(sandbox, "cat /proc/self/oom_score_adj")).output)
        assert commands >= max(500, agents)

    async def test_its_socket_has_no_path_inside(self, sandbox: Sandbox, sandbox_root: Path):
        # /proc/net/unix shows the network namespace's sockets: the agent's was made outside of it.
        assert (await shell(sandbox, "grep -c agent.sock /proc/net/unix")).output == b"0\n"
        assert (await shell(sandbox, f"ls -d {sandbox_root}")).exit_code != 0
        assert (await shell(sandbox, "ls /proc/self/fd | tr '\\n' ' '")).output in {b"0 1 2 3 ", b"0 1 2 3 4 "}

    async def test_unauthorized_requests_are_refused(self, sandbox: Sandbox, sandbox_root: Path):
        from journeyman.platform.sandboxes.errors import SandboxUnavailable
        from journeyman.platform.sandboxes.registry import dial
        from journeyman.platform.sandboxes.wire import calling

        for token, op in (("wrong", "ping"), ("", "run")):
            async with calling(lambda: dial(sandbox_root / sandbox.id), sandbox.id, token, {"op": op}) as call:
                with pytest.raises(SandboxUnavailable, match="token"):
                    await call.receive()

    async def test_garbage_on_its_socket_harms_nobody(self, sandbox: Sandbox, sandbox_root: Path):
        from journeyman.platform.sandboxes.registry import dial

        for data in (
            b"\xff" * 100,
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\x02\0\0\0\0[]",
            b"\0\0\0\x02\0\0\0\0{]",
            b"\0\0",
        ):
            _, writer = await dial(sandbox_root / sandbox.id)
            writer.write(data)
            writer.close()
        await sandbox.ping()


class TestHost:
    async def test_files_are_invisible(self, sandbox: Sandbox, sandbox_root: Path, tmp_path: Path):
        secret = tmp_path / "secret"
        secret.write_text("secret")
        for path in (
            secret,
            sandbox_root,
            Path(__file__),
            Path.home() / ".bashrc",
            Path("/etc/shadow"),
            Path("/etc/ssh"),
        ):
            assert (await shell(sandbox, f"ls -d '{path}'")).exit_code != 0, path
        etc = (await shell(sandbox, "ls /etc")).output.decode().split()
        assert not {"shadow", "ssh", "fstab", "machine-id", "environment", "sudoers"} & set(etc)
        top = (await shell(sandbox, "ls /")).output.decode().split()
        assert not {"sys", "boot", "mnt", "media", "srv", "var", "opt"} & set(top)

    async def test_environment_is_clean(self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
        names = {line.split("=")[0] for line in (await shell(sandbox, "env")).output.decode().splitlines()}
        assert names <= {
            *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "PWD", "SHLVL", "_"),
        }

    async def test_system_is_read_only(self, sandbox: Sandbox):
        for path in ("/x", "/usr/x", "/usr/bin/x", "/etc/x", "/dev/x", "/run/x", "/home/x", "/root/x", "/scratch/x"):
            assert (await shell(sandbox, f"touch {path}")).exit_code != 0, path
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory"):
            assert (await shell(sandbox, f"echo x > {path}")).exit_code != 0, path
        assert (await shell(sandbox, "echo 9999 > /proc/sys/user/max_user_namespaces")).exit_code != 0
        assert (
            await shell(
                sandbox,
                "mknod d b 1 1 || mknod /tmp/d c 1 1 || ls /dev/sda || ls /dev/vda || ls /dev/mem || ls /dev/kmsg",
            )
        ).exit_code != 0

    async def test_writable_places(self, sandbox: Sandbox):
        places = "/workspace /artifacts /tmp ~ /dev/shm"
        assert (await shell(sandbox, f"for d in {places}; do touch $d/x || exit 1; done")).exit_code == 0

    async def test_network_is_unreachable(self, sandbox: Sandbox):
        with socket.create_server(("127.0.0.1", 0)) as server:
            accepted = []
            threading.Thread(target=lambda: accepted.append(_accept(server)), daemon=True).start()
            port = server.getsockname()[1]
            got = await answer(
                sandbox,
                f"""
import json, socket
def attempt(address, port):
    try:
        socket.create_connection((address, port), 2).close()
        return "connected"
    except OSError as error:
        return errno.errorcode.get(error.errno, "other")
targets = [("127.0.0.1", {port}), ("::1", {port}), ("169.254.169.254", 80), ("10.0.0.1", 80), ("1.1.1.1", 53), ("localhost.localdomain", 80)]
print(json.dumps([attempt(*target) for target in targets]))
""",
            )
        assert "connected" not in got
        interfaces = (await shell(sandbox, "cat /proc/net/dev")).output.decode()
        assert [line.split(":")[0].strip() for line in interfaces.splitlines()[2:]] == ["lo"]

    async def test_abstract_sockets_of_the_host_are_unreachable(self, sandbox: Sandbox):
        name = f"\0journeyman-{uuid.uuid4().hex}"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            server.listen()
            got = await answer(
                sandbox,
                f"""
import json, socket
try:
    socket.socket(socket.AF_UNIX).connect({name!r})
    print(json.dumps("connected"))
except OSError as error:
    print(json.dumps(errno.errorcode[error.errno]))
""",
            )
        assert got == "ECONNREFUSED"

    async def test_processes_of_the_host_are_invisible(self, sandbox: Sandbox):
        pids = (await shell(sandbox, "ls /proc | grep -c '^[0-9]'")).output
        assert int(pids) < 10

    async def test_neighbours_share_nothing(self, driver: SandboxDriver, sandbox: Sandbox):
        other = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL))
        await shell(sandbox, "echo secret | tee /tmp/s /workspace/s /dev/shm/s; ipcmk -M 1000")
        got = await shell(other, "ls -A /tmp /workspace /dev/shm | grep -v :; ipcs -m | grep -c 0x")
        assert got.output.strip() == b"0"
        await driver.release(other.id)


def _uid_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    raise AssertionError(pid)


def _accept(server: socket.socket) -> str:
    try:
        server.accept()
    except OSError:
        return ""
    return "connected"
