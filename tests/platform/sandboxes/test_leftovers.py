"""Processes that a command leaves behind: ended with it where that is asked for, and told."""

import shlex

import pytest

from journeyman.platform.sandboxes.port import Sandbox
from support.sandboxes import shell
from support.waiting import until


async def running(sandbox: Sandbox, mark: str) -> int:
    """How many processes have a word in their command line, the one that counts left out."""
    listed = await shell(sandbox, f"grep -lsa {mark[0]}[{mark[1]}]{mark[2:]} /proc/[0-9]*/cmdline | wc -l")
    return int(listed.output)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 987 &",
        "sleep 987 & disown",
        "nohup sleep 987 > /dev/null 2>&1 &",
        "setsid sleep 987 > /dev/null 2>&1 < /dev/null &",
        "(setsid sleep 987 &) > /dev/null 2>&1",
        "env -i setsid bash -c 'trap \"\" TERM; sleep 987; sleep 987' > /dev/null 2>&1 &",
    ],
    ids=range(6),
)
async def test_leftovers_end_with_their_command(sandbox: Sandbox, command: str):
    result = await shell(sandbox, f"{command}\necho started", end_leftovers=True)
    assert (result.exit_code, result.output) == (0, b"started\n")
    assert 1 <= result.leftovers <= 2
    assert await running(sandbox, "sleep") == 0


async def test_a_bomb_left_behind_ends(sandbox: Sandbox):
    result = await shell(sandbox, ":(){ :|:& }; : & sleep 0.5", end_leftovers=True, timeout_s=20)
    assert result.pids_hit
    assert result.leftovers > 5 or result.timed_out
    listed = await shell(sandbox, "set -- /proc/[0-9]*; echo $#")
    assert int(listed.output) < 6


async def test_what_is_about_to_end_may(sandbox: Sandbox):
    """A file that is still being written when the shell has ended is written to its end."""
    result = await shell(sandbox, "echo data > >(sleep 0.4; cat > file) 2> /dev/null", end_leftovers=True)
    assert result.leftovers == 0
    assert await sandbox.read_file("/workspace/file") == b"data\n"


async def test_background_commands_keep_running(sandbox: Sandbox):
    """Those beside a command, those that have turned into daemons, and those of a command that keeps its own."""
    await shell(sandbox, "exec -a one sleep 987", background=True)
    daemon = await shell(sandbox, "setsid bash -c 'exec -a two sleep 987' & sleep 0.2", background=True)
    await until(lambda: _ended(sandbox, daemon.exec_id))
    await shell(sandbox, "(exec -a three sleep 987) > /dev/null 2>&1 &")
    result = await shell(sandbox, "(exec -a four sleep 987) & exit 3", end_leftovers=True)
    assert (result.exit_code, result.leftovers) == (3, 1)
    assert [await running(sandbox, name) for name in ("one", "two", "three", "four")] == [1, 1, 1, 0]


async def _ended(sandbox: Sandbox, exec_id: str) -> bool:
    return not (await sandbox.poll(exec_id)).running


async def test_nothing_left_costs_no_time(sandbox: Sandbox):
    result = await shell(sandbox, "sleep 0.2 & seq 3 | tail -1; wait", end_leftovers=True)
    assert (result.output, result.leftovers) == (b"3\n", 0)
    assert result.duration_s < 0.9


ESCAPES = {
    "own environment": "env -i A=1 setsid bash -c 'setsid sleep 987 &' > /dev/null 2>&1",
    "another command's id": "(JOURNEYMAN_EXEC_ID=other setsid sleep 987 &) > /dev/null 2>&1",
    "chain of short-lived parents": "(setsid bash -c '(setsid bash -c \"sleep 0.2; (setsid sleep 987 &)\" &)' &) > /dev/null 2>&1",
    "reaper given up": (
        "python3 -c 'import ctypes; ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)'; "
        "exec python3 -c 'import ctypes, os; ctypes.CDLL(None).prctl(36, 0, 0, 0, 0); "
        'os.system("(env -i setsid sleep 987 &) > /dev/null 2>&1")\''
    ),
}


@pytest.mark.parametrize("command", ESCAPES.values(), ids=ESCAPES)
async def test_no_process_leaves_its_command(sandbox: Sandbox, command: str):
    """Beside a command in the background, which keeps what is its own."""
    await shell(sandbox, "exec -a kept tail -f /dev/null", background=True)
    await shell(sandbox, command, end_leftovers=True)
    assert await running(sandbox, "sleep") == 0
    assert await running(sandbox, "kept") == 1


@pytest.mark.parametrize("command", ESCAPES.values(), ids=ESCAPES)
async def test_no_process_survives_a_time_limit(sandbox: Sandbox, command: str):
    waiting = f"bash -c {shlex.quote(command)}; sleep 986"
    assert (await shell(sandbox, waiting, timeout_s=2)).timed_out
    assert await running(sandbox, "sleep") == 0


async def test_a_command_cannot_stop_being_a_reaper(sandbox: Sandbox):
    call = "import ctypes; print(ctypes.CDLL(None).prctl(36, {}, 0, 0, 0))"
    for value, result in ((0, b"-1\n"), (1 << 32, b"-1\n"), (1, b"0\n")):
        assert (await shell(sandbox, f"python3 -c '{call.format(value)}'")).output == result
