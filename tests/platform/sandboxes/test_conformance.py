"""What every sandbox driver promises."""

import asyncio
import hashlib
import time
import uuid
from pathlib import Path

import pytest

from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.sandboxes.errors import (
    ExecNotFound,
    SandboxFileError,
    SandboxLost,
    SearchRefused,
    TooManyCommands,
)
from journeyman.platform.sandboxes.port import (
    EGRESS_SOCKET,
    ExecRequest,
    Sandbox,
    SandboxDriver,
    SandboxSpec,
    TreeEntry,
)
from support.sandboxes import SMALL, python, shell
from support.waiting import until


def spec(**options) -> SandboxSpec:
    return SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL, **options)


class TestLease:
    async def test_is_idempotent_by_id(self, driver: SandboxDriver):
        wanted = spec(env={"GREETING": "hello"})
        first = await driver.lease(wanted)
        await first.write_file("/workspace/kept", b"1")
        again = await driver.lease(wanted)
        assert await again.read_file("/workspace/kept") == b"1"
        assert (await shell(again, "printf %s $GREETING")).output == b"hello"
        assert wanted.sandbox_id in await driver.list_ids()
        await driver.release(wanted.sandbox_id)
        await driver.release(wanted.sandbox_id)
        assert wanted.sandbox_id not in await driver.list_ids()

    async def test_two_at_once_for_one_id_get_one_sandbox(self, driver: SandboxDriver):
        wanted = spec()
        one, two = await asyncio.gather(driver.lease(wanted), driver.lease(wanted))
        await one.write_file("/tmp/x", b"same")
        assert await two.read_file("/tmp/x") == b"same"
        await driver.release(wanted.sandbox_id)

    async def test_released_sandbox_is_lost(self, driver: SandboxDriver):
        wanted = spec()
        sandbox = await driver.lease(wanted)
        running = asyncio.create_task(shell(sandbox, "sleep 60"))
        await until(lambda: _runs(sandbox, "sleep 60"))
        await driver.release(wanted.sandbox_id)
        with pytest.raises(SandboxLost):
            await running
        for attempt in (sandbox.ping, lambda: shell(sandbox, "true"), lambda: driver.connect(wanted.sandbox_id)):
            with pytest.raises(SandboxLost):
                await attempt()

    async def test_ends_at_its_deadline(self, driver: SandboxDriver):
        wanted = spec(lease_s=0.5)
        sandbox = await driver.lease(wanted)
        await sandbox.renew(1.0)
        started = time.monotonic()

        async def gone() -> bool:
            try:
                await driver.connect(wanted.sandbox_id)
            except SandboxLost:
                return True
            return False

        await until(gone)
        assert 0.5 < time.monotonic() - started < 3
        await driver.release(wanted.sandbox_id)

    async def test_a_new_one_has_nothing_of_the_last(self, driver: SandboxDriver):
        wanted = spec(env={"A": "1"})
        sandbox = await driver.lease(wanted)
        await shell(sandbox, "echo x > /workspace/f; echo x > /tmp/f; echo x > ~/f; sleep 100 &")
        await driver.release(wanted.sandbox_id)
        fresh = await driver.lease(SandboxSpec(wanted.sandbox_id, limits=SMALL))
        left = await shell(
            fresh, "ls -A /workspace /artifacts /tmp ~ /dev/shm | grep -v ':$'; env | grep ^A=; ps ax | grep -c [s]leep"
        )
        assert left.output.split() == [b"0"]
        await driver.release(wanted.sandbox_id)

    @pytest.mark.parametrize("sandbox_id", ["", "../x", "a/b", ".hidden", "x" * 200])
    async def test_refuses_ids_that_are_no_names(self, driver: SandboxDriver, sandbox_id: str):
        with pytest.raises(InvalidInput):
            await driver.lease(SandboxSpec(sandbox_id))

    async def test_a_way_out_is_one_socket_and_no_network(self, driver: SandboxDriver, tmp_path: Path):
        path = tmp_path / "egress.sock"

        def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.close()

        async with await asyncio.start_unix_server(greet, path) as server:
            path.chmod(0o666)
            wanted = spec(egress=path)
            sandbox = await driver.lease(wanted)
            connect = f"import socket\nway = socket.socket(socket.AF_UNIX)\nway.connect({EGRESS_SOCKET!r})\nprint(way.recv(9))\n"
            assert (await python(sandbox, connect)).output == b"b'hello'\n"
            assert (await shell(sandbox, "grep -c : /proc/net/dev; ls /sys 2>&1 | wc -l")).output.split()[0] == b"1"
            assert (await shell(sandbox, f"rm {EGRESS_SOCKET} || chmod 0 {EGRESS_SOCKET}")).exit_code != 0
            await driver.release(wanted.sandbox_id)
            server.close()
        plain = await driver.lease(spec())
        assert (await shell(plain, f"test -e {EGRESS_SOCKET}")).exit_code == 1
        await driver.release(plain.id)

    async def test_refuses_unknown_toolset_and_senseless_limits(self, driver: SandboxDriver):
        with pytest.raises(InvalidInput, match="toolset"):
            await driver.lease(spec(toolset="cobol"))
        with pytest.raises(InvalidInput, match="lease_s"):
            await driver.lease(spec(lease_s=0))


class TestOwnPrograms:
    """Programs of the platform's own: no shell reads their words, and nothing of the task's variables reaches them."""

    async def test_words_are_not_read_by_a_shell(self, sandbox: Sandbox):
        words = ["printf", "%s|", "$(id)", "a b", "*", "", "'"]
        assert (await sandbox.run(ExecRequest("own_words", words))).output == b"$(id)|a b|*||'|"

    async def test_variables_of_the_task_are_for_its_own_commands(self, driver: SandboxDriver):
        hostile = {
            "BASH_ENV": "/workspace/start",
            "LD_PRELOAD": "/workspace/none.so",
            "PATH": "/workspace:/usr/bin:/bin",
            "GIT_DIR": "/workspace/x",
            "PYTHONHOME": "/workspace",
            "HOME": "/workspace",
            "https_proxy": "http://127.0.0.1:1",
        }
        wanted = spec(env=hostile)
        sandbox = await driver.lease(wanted)
        await sandbox.write_file("/workspace/start", b"echo started; ")
        await sandbox.write_file("/workspace/env", b"#!/bin/sh\necho planted\n", 0o755)
        await sandbox.write_file("/home/agent/.local/bin/env", b"#!/bin/sh\necho planted\n", 0o755)
        assert b"started" in (await shell(sandbox, "true")).output, "the task's own command has its variables"
        own = await sandbox.run(ExecRequest("own_env", ["env"], env={"ONLY": "this"}))
        names = dict(line.split("=", 1) for line in own.output.decode().splitlines())
        assert names.keys() >= {"PATH", "HOME", "LANG", "ONLY"}
        assert names["HOME"] == "/home/agent"
        assert "/workspace" not in names["PATH"]
        assert not names.keys() & (hostile.keys() - {"PATH", "HOME"})
        bash = await sandbox.run(ExecRequest("own_bash", ["bash", "-c", "echo quiet"]))
        assert bash.output == b"quiet\n"
        await driver.release(wanted.sandbox_id)

    async def test_one_that_is_missing(self, sandbox: Sandbox):
        result = await sandbox.run(ExecRequest("own_missing", ["no-such-program"]))
        assert result.exit_code == 126
        assert b"No such file" in result.output
        with pytest.raises(InvalidInput):
            await sandbox.run(ExecRequest("own_nothing", []))


class TestRun:
    async def test_result(self, sandbox: Sandbox):
        result = await shell(sandbox, "echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.signal, result.timed_out, result.running) == (3, None, False, False)
        assert result.output == b"out\nerr\n"
        assert result.total_bytes == 8
        assert not result.truncated
        assert not result.reattached
        assert not result.oom_killed

    async def test_signal(self, sandbox: Sandbox):
        result = await shell(sandbox, "kill -SEGV $$")
        assert (result.exit_code, result.signal) == (None, 11)

    async def test_environment_and_directory(self, sandbox: Sandbox):
        result = await shell(sandbox, 'printf "%s|" "$A" "$HOME" "$PWD" "$(pwd)"', env={"A": "ä\nb"}, cwd="/tmp")
        assert result.output.decode() == "ä\nb|/home/agent|/tmp|/tmp|"

    async def test_runs_once_per_exec_id(self, sandbox: Sandbox):
        request = ExecRequest("once", "echo ran >> /workspace/log; sleep 0.3; echo done")
        first, second = await asyncio.gather(sandbox.run(request), sandbox.run(request))
        third = await sandbox.run(request)
        assert [first.output, second.output, third.output] == [b"done\n"] * 3
        assert third.reattached
        assert third.exit_code == 0
        assert await sandbox.read_file("/workspace/log") == b"ran\n"

    async def test_cancelling_the_call_leaves_the_command(self, sandbox: Sandbox):
        request = ExecRequest("detached", "sleep 0.5; echo finished")
        call = asyncio.create_task(sandbox.run(request))
        await until(lambda: _runs(sandbox, "sleep 0.5"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        result = await sandbox.run(request)
        assert result.output == b"finished\n"
        assert result.reattached

    async def test_stdin(self, sandbox: Sandbox):
        data = bytes(range(256)) * 40_000  # 10 MB, far more than a pipe holds
        result = await shell(sandbox, "sha256sum; cat", stdin=data)
        assert result.output.split()[0].decode() == hashlib.sha256(data).hexdigest()
        assert (await shell(sandbox, "cat | wc -c")).output.strip() == b"0"
        assert (await shell(sandbox, "true", stdin=data)).exit_code == 0

    async def test_bytes_come_back_as_they_are(self, sandbox: Sandbox):
        data = b"\x00\xff\xfe\x1b[31m\x1b]0;title\x07\r\n\xc3\x28 end"
        result = await shell(sandbox, "cat", stdin=data)
        assert result.output == data

    async def test_output_is_streamed_with_offsets(self, sandbox: Sandbox):
        seen: list[tuple[int, bytes, float]] = []
        request = ExecRequest("stream", "echo one; sleep 0.4; head -c 100000 /dev/zero | tr '\\0' x")
        result = await sandbox.run(request, lambda offset, data: seen.append((offset, data, time.monotonic())))
        assert b"".join(data for _, data, _ in seen) == result.output
        position = 0
        for offset, data, _ in seen:
            assert offset == position
            assert 0 < len(data) <= 32 * 1024
            position += len(data)
        assert seen[-1][2] - seen[0][2] > 0.3
        again: list[tuple[int, bytes]] = []
        await sandbox.run(request, lambda offset, data: again.append((offset, data)))
        assert b"".join(data for _, data in again) == result.output

    async def test_long_output_is_cut_in_the_middle(self, sandbox: Sandbox):
        result = await shell(sandbox, "echo begin; seq 1 200000; echo end", output_limit=10_000)
        assert result.truncated
        assert result.total_bytes == len("begin\nend\n") + sum(len(f"{n}\n") for n in range(1, 200_001))
        assert result.output.startswith(b"begin\n1\n")
        assert result.output.endswith(b"200000\nend\n")
        left_out = result.total_bytes - 10_000
        assert f"[... {left_out} bytes left out ...]".encode() in result.output
        assert len(result.output) < 10_100

    async def test_background(self, sandbox: Sandbox):
        started = time.monotonic()
        result = await shell(sandbox, "sleep 0.3; echo later; sleep 30", background=True)
        assert result.running
        assert result.exit_code is None
        assert time.monotonic() - started < 0.3

        async def printed() -> bool:
            return (await sandbox.poll(result.exec_id)).output == b"later\n"

        await until(printed)
        await sandbox.kill(result.exec_id)
        ended = await sandbox.poll(result.exec_id)
        assert not ended.running
        assert ended.signal == 15
        await sandbox.kill(result.exec_id)

    async def test_background_server_serves_the_next_command(self, sandbox: Sandbox):
        await sandbox.write_file("/workspace/index.html", b"served")
        server = await shell(sandbox, "exec python3 -m http.server 8000 --bind 127.0.0.1", background=True)
        fetch = (
            "import time, urllib.request\n"
            "for _ in range(100):\n"
            "    try:\n"
            "        print(urllib.request.urlopen('http://127.0.0.1:8000/index.html').read())\n"
            "        break\n"
            "    except OSError:\n"
            "        time.sleep(0.05)\n"
        )
        assert (await python(sandbox, fetch)).output.strip() == b"b'served'"
        await sandbox.kill(server.exec_id)

    async def test_returns_although_a_child_holds_the_output(self, sandbox: Sandbox):
        started = time.monotonic()
        result = await shell(sandbox, "(while sleep 0.05; do echo tick; done) & echo started")
        assert time.monotonic() - started < 1
        assert result.exit_code == 0
        assert result.output.startswith(b"started\n")
        # It goes on: nobody closed its pipe.
        assert int((await shell(sandbox, "sleep 0.3; ps ax | grep -c '[s]leep 0.05'")).output) >= 1

    async def test_unknown_exec_id(self, sandbox: Sandbox):
        with pytest.raises(ExecNotFound):
            await sandbox.poll("never")
        with pytest.raises(ExecNotFound):
            await sandbox.kill("never")

    @pytest.mark.parametrize(
        "request_",
        [
            ExecRequest("", "true"),
            ExecRequest("x", "a\0b"),
            ExecRequest("x", "true", env={"A=B": "1"}),
            ExecRequest("x", "true", timeout_s=0),
            ExecRequest("x", "true", output_limit=10**9),
            ExecRequest("x", ("true", "x" * 128 * 1024)),
        ],
    )
    async def test_refuses_what_cannot_be_meant(self, sandbox: Sandbox, request_: ExecRequest):
        with pytest.raises(InvalidInput):
            await sandbox.run(request_)

    async def test_missing_directory(self, sandbox: Sandbox):
        with pytest.raises(SandboxFileError) as caught:
            await shell(sandbox, "true", cwd="/workspace/nowhere")
        assert caught.value.kind == "not_found"

    async def test_more_calls_than_connections(self, sandbox: Sandbox):
        await asyncio.gather(*(sandbox.ping() for _ in range(300)))

    async def test_too_many_commands_are_refused(self, sandbox: Sandbox):
        running = [shell(sandbox, "exec sleep 60", background=True) for _ in range(SMALL.pids + 40)]
        results = await asyncio.gather(*running, return_exceptions=True)
        refused = [result for result in results if isinstance(result, TooManyCommands)]
        assert len(refused) + sum(not isinstance(result, BaseException) for result in results) == len(results)
        assert refused
        assert refused[0].retryable

    async def test_many_at_once(self, sandbox: Sandbox):
        results = await asyncio.gather(*(shell(sandbox, f"echo {number}") for number in range(30)))
        assert [int(result.output) for result in results] == list(range(30))


class TestTimeout:
    async def test_ends_the_command(self, sandbox: Sandbox):
        started = time.monotonic()
        result = await shell(sandbox, "echo before; sleep 60", timeout_s=0.5)
        assert result.timed_out
        assert result.output == b"before\n"
        assert result.signal == 15
        assert time.monotonic() - started < 2

    async def test_kills_what_ignores_sigterm(self, sandbox: Sandbox):
        program = (
            "import os, signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.fork()\n"
            "print('up', flush=True)\n"
            "time.sleep(77)\n"
        )
        result = await python(sandbox, program, timeout_s=1)
        assert result.timed_out
        assert result.signal == 9
        assert not await _processes(sandbox)

    async def test_kills_daemons_too(self, sandbox: Sandbox):
        program = (
            "import os, time\n"
            "for clean in (False, True):\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n"
            "        if os.fork() == 0:\n"
            "            if clean:\n"
            "                os.execve('/bin/sleep', ['sleep', '78'], {})\n"
            "            time.sleep(79)\n"
            "        os._exit(0)\n"
            "time.sleep(80)\n"
        )
        result = await python(sandbox, program, timeout_s=1)
        assert result.timed_out
        assert not await _processes(sandbox)

    async def test_spares_other_commands(self, sandbox: Sandbox):
        server = await shell(sandbox, "sleep 81", background=True)
        await shell(sandbox, "sleep 82 & sleep 83", timeout_s=0.3)
        assert (await sandbox.poll(server.exec_id)).running
        left = await _processes(sandbox)
        assert any("sleep 81" in line for line in left)
        assert not any("82" in line or "83" in line for line in left)

    async def test_stopped_processes_are_ended(self, sandbox: Sandbox):
        result = await shell(sandbox, "sleep 84 & kill -STOP $!; kill -STOP $$", timeout_s=0.3)
        assert result.timed_out
        assert not await _processes(sandbox)

    async def test_zombies_are_reaped(self, sandbox: Sandbox):
        await shell(sandbox, "for i in $(seq 20); do (sleep 0.01 & exec true) & done; wait")

        async def clean() -> bool:
            return b"Z" not in (await shell(sandbox, "ps -e -o stat= ")).output

        await until(clean)


class TestFiles:
    async def test_write_and_read(self, sandbox: Sandbox):
        data = bytes(range(256)) * 5000
        await sandbox.write_file("/workspace/new/dir/file.bin", data)
        assert await sandbox.read_file("/workspace/new/dir/file.bin") == data
        assert await sandbox.read_file("/workspace/new/dir/file.bin", 255, 3) == b"\xff\x00\x01"
        assert await sandbox.read_file("/workspace/new/dir/file.bin", len(data) + 10) == b""
        assert (await shell(sandbox, "stat -c '%a %U' new/dir/file.bin")).output == b"644 agent\n"

    async def test_write_keeps_or_sets_the_mode(self, sandbox: Sandbox):
        await sandbox.write_file("/workspace/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
        await sandbox.write_file("/workspace/run.sh", b"#!/bin/sh\necho again\n")
        assert (await shell(sandbox, "./run.sh")).output == b"again\n"

    async def test_relative_paths_are_the_workspace(self, sandbox: Sandbox):
        await sandbox.write_file("a.txt", b"x")
        assert await sandbox.read_file("/workspace/a.txt") == b"x"

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/workspace/none", "not_found"),
            ("/workspace", "is_a_directory"),
            ("/etc/passwd", "outside"),
            ("/proc/1/environ", "outside"),
            ("../etc/passwd", "outside"),
            ("/workspace/../etc/passwd", "outside"),
            ("/workspace/a\0b", "invalid"),
            ("/workspace/" + "n" * 300, "invalid"),
        ],
    )
    async def test_refuses_to_read(self, sandbox: Sandbox, path: str, kind: str):
        with pytest.raises(SandboxFileError) as caught:
            await sandbox.read_file(path)
        assert caught.value.kind == kind

    async def test_links_lead_nowhere_else(self, sandbox: Sandbox):
        await shell(sandbox, "ln -s /etc/passwd link; ln -s /etc dir; ln -s /workspace/real alias; ln -s loop loop")
        for path in ("/workspace/link", "/workspace/dir/passwd"):
            with pytest.raises(SandboxFileError) as caught:
                await sandbox.read_file(path)
            assert caught.value.kind == "outside"
        for path in ("/workspace/link", "/workspace/dir/new"):
            with pytest.raises(SandboxFileError) as caught:
                await sandbox.write_file(path, b"x")
            assert caught.value.kind == "outside"
        with pytest.raises(SandboxFileError):
            await sandbox.read_file("/workspace/loop")
        await sandbox.write_file("/workspace/alias", b"through the link")
        assert await sandbox.read_file("/workspace/real") == b"through the link"

    async def test_special_files_are_refused_at_once(self, sandbox: Sandbox):
        await shell(sandbox, "mkfifo fifo; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"")
        async with asyncio.timeout(5):
            for path in ("/workspace/fifo", "/workspace/sock"):
                with pytest.raises(SandboxFileError) as caught:
                    await sandbox.read_file(path)
                assert caught.value.kind == "not_a_file"
                with pytest.raises(SandboxFileError):
                    await sandbox.write_file(path, b"x")

    async def test_large_reads_are_refused(self, sandbox: Sandbox):
        await shell(sandbox, "truncate -s 17M big")
        with pytest.raises(SandboxFileError) as caught:
            await sandbox.read_file("/workspace/big")
        assert caught.value.kind == "too_large"
        assert await sandbox.read_file("/workspace/big", 5, 4) == bytes(4)

    async def test_a_write_without_room_leaves_the_old_file(self, sandbox: Sandbox):
        await sandbox.write_file("/workspace/f", b"old")
        with pytest.raises(SandboxFileError) as caught:
            await sandbox.write_file("/workspace/f", bytes(SMALL.disk_bytes + 1))
        assert caught.value.kind == "no_space"
        assert await sandbox.read_file("/workspace/f") == b"old"
        assert [info.path for info in await sandbox.list_files()] == ["/workspace/f"]

    async def test_names_that_are_not_utf8(self, sandbox: Sandbox):
        await shell(sandbox, r"printf x > $'\xff\xfe'")
        [info] = await sandbox.list_files()
        assert info.path == "/workspace/\udcff\udcfe"
        assert await sandbox.read_file(info.path) == b"x"

    async def test_list(self, sandbox: Sandbox):
        await shell(sandbox, "mkdir -p a/b/c; echo 12345 > a/f; chmod 600 a/f; ln -s /etc a/l; touch a/b/c/deep")
        listed = {info.path: info for info in await sandbox.list_files("/workspace", depth=2)}
        assert list(listed) == ["/workspace/a", "/workspace/a/b", "/workspace/a/f", "/workspace/a/l"]
        assert (listed["/workspace/a/f"].size, listed["/workspace/a/f"].mode) == (6, 0o600)
        assert [info.kind for info in listed.values()] == ["directory", "directory", "file", "symlink"]
        assert abs(listed["/workspace/a/f"].modified - time.time()) < 60
        with pytest.raises(SandboxFileError) as caught:
            await sandbox.list_files("/workspace/none")
        assert caught.value.kind == "not_found"

    async def test_list_is_bounded(self, sandbox: Sandbox):
        await shell(
            sandbox,
            "mkdir d; cd d; seq -f %06g 1 3900 | xargs touch; mkdir e; cd e; seq 1 1500 | xargs touch",
            timeout_s=20,
        )
        assert len(await sandbox.list_files("/workspace", depth=5)) <= 5000

    async def test_search(self, sandbox: Sandbox):
        await sandbox.write_file("/workspace/a.py", b"import os\n\ndef main():\n    pass\n")
        await sandbox.write_file("/workspace/sub/b.txt", b"def other\n\xff def bytes\n")
        await sandbox.write_file("/workspace/bin", b"def \0 binary")
        hits = await sandbox.search(r"def \w+")
        assert [(hit.path, hit.line, hit.text) for hit in hits] == [
            ("/workspace/a.py", 3, "def main():"),
            ("/workspace/sub/b.txt", 1, "def other"),
            ("/workspace/sub/b.txt", 2, "\ufffd def bytes"),
        ]
        assert [hit.path for hit in await sandbox.search("def", glob="*.py")] == ["/workspace/a.py"]
        assert [hit.line for hit in await sandbox.search("def", glob="sub/*.txt")] == [1, 2]
        assert [hit.line for hit in await sandbox.search("def", glob="**/*.txt")] == [1, 2]
        assert [hit.line for hit in await sandbox.search("def", "/workspace/a.py")] == [3]
        with pytest.raises(SearchRefused):
            await sandbox.search("(")
        with pytest.raises(SandboxFileError):
            await sandbox.search("x", "/etc")

    async def test_a_hostile_pattern_is_stopped(self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("journeyman.platform.sandboxes.remote.SEARCH_S", 0.5)
        await sandbox.write_file("/workspace/a", b"a" * 60 + b"!\n")
        search = asyncio.create_task(sandbox.search(r"^(a+)+$"))
        await until(lambda: _answers(sandbox))
        with pytest.raises(SearchRefused, match="longer than"):
            await search


class TestTrees:
    async def test_scan_tells_only_what_changed(self, sandbox: Sandbox):
        await shell(sandbox, "mkdir d; echo 1 > d/f; echo 2 > g; ln -s g l; mkfifo p")
        first = await sandbox.scan()
        assert first.complete
        assert first.skipped == ["workspace/p"]
        assert {(entry.path, entry.kind) for entry in first.entries} == {
            ("workspace/d", "directory"),
            ("workspace/d/f", "file"),
            ("workspace/g", "file"),
            ("workspace/l", "symlink"),
        }
        await sandbox.mark(first.scan_id, "a" * 64)
        same = await sandbox.scan("a" * 64)
        assert (same.complete, same.entries, same.removed) == (False, [], [])
        await shell(sandbox, "echo 3 > g; rm l; chmod 755 d/f; touch d")
        delta = await sandbox.scan("a" * 64)
        assert sorted(entry.path for entry in delta.entries) == ["workspace/d/f", "workspace/g"]
        assert delta.removed == ["workspace/l"]
        assert (await sandbox.scan("b" * 64)).complete

    async def test_scan_brings_small_new_contents(self, sandbox: Sandbox):
        await shell(sandbox, "echo 1 > a; : > nothing; mkdir d; head -c 65536 /dev/zero > d/large")
        first = await sandbox.scan()
        # Not both: together they are more than a scan brings.
        assert first.contents in ({"workspace/a": b"1\n"}, {"workspace/d/large": bytes(65536)})
        await sandbox.mark(first.scan_id, "a" * 64)
        await shell(sandbox, "touch a; echo 2 > b; cp b c; chmod 000 c; ln -s b l; head -c 65537 /dev/zero > larger")
        delta = await sandbox.scan("a" * 64)
        assert delta.contents == {"workspace/b": b"2\n", "workspace/c": b"2\n"}
        await sandbox.mark(delta.scan_id, "b" * 64)
        await shell(sandbox, "for f in $(seq 1100); do echo $f > f$f; done")
        many = await sandbox.scan("b" * 64)
        assert len(many.entries) == 1100
        assert len(many.contents) == 1000
        assert all(data == path.removeprefix("workspace/f").encode() + b"\n" for path, data in many.contents.items())

    async def test_replace_tree(self, sandbox: Sandbox):
        await shell(sandbox, "mkdir -p old/dir; echo x > old/dir/f; chmod 000 old/dir; echo y > /artifacts/z")
        big = bytes(range(256)) * 4096
        entries = [
            TreeEntry("artifacts/out", "file", 0o600, 3, hashlib.sha256(b"abc").hexdigest()),
            TreeEntry("workspace/a", "directory", 0o555),
            TreeEntry("workspace/a/big", "file", 0o444, len(big), hashlib.sha256(big).hexdigest()),
            TreeEntry("workspace/a/empty", "file", 0o644, 0, hashlib.sha256(b"").hexdigest()),
            TreeEntry("workspace/l", "symlink", 0o777, target="/etc/passwd"),
        ]

        async def contents():
            yield "artifacts/out", b"abc"
            yield "workspace/a/big", big[:500_000]
            yield "workspace/a/big", big[500_000:]

        await sandbox.replace_tree(entries, contents(), "c" * 64)
        listing = await shell(sandbox, "find /workspace /artifacts -printf '%p %m %s %l\\n' | sort; sha256sum < a/big")
        assert b"/workspace/l 777 11 /etc/passwd" in listing.output
        assert hashlib.sha256(big).hexdigest().encode() in listing.output
        assert b"old" not in listing.output
        assert b"/artifacts/z" not in listing.output
        delta = await sandbox.scan("c" * 64)
        assert (delta.complete, delta.entries, delta.removed) == (False, [], [])


async def _answers(sandbox: Sandbox) -> bool:
    await sandbox.ping()
    return True


async def _processes(sandbox: Sandbox) -> list[str]:
    """Command lines of all processes but the agent and the one that asks."""
    listed = await shell(sandbox, "ps -e -o pid=,args=")
    lines = [line.strip() for line in listed.output.decode().splitlines()]
    return [line for line in lines if not line.startswith("1 ") and "ps -e -o" not in line]


async def _runs(sandbox: Sandbox, command: str) -> bool:
    return any(command in line for line in await _processes(sandbox))
