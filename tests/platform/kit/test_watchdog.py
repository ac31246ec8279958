"""A process whose event loop is blocked says where, and ends; one that was merely stopped goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from journeyman.platform.kit.watchdog import EXIT_STATUS
from support.stand_ins import wait_until

PROGRAM = """
import asyncio, re, sys, time
from journeyman.platform.kit import metrics
from journeyman.platform.kit.logging import configure
from journeyman.platform.kit.watchdog import watching

def blocked_in_python(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)

async def main():
    configure("test")
    async with watching("test", warn_after_s=0.5, exit_after_s=float(sys.argv[2])):
        print("watched", flush=True)
        match sys.argv[1]:
            case "python":
                blocked_in_python(30)
            case "interpreter":
                re.match("(a+)+b", "a" * 40)
            case "short":
                blocked_in_python(1.5)
                await asyncio.sleep(1)
                blocked_in_python(1.5)
                await asyncio.sleep(1)
            case "busy":
                for _ in range(300):
                    blocked_in_python(0.05)
                    await asyncio.sleep(0)
            case "idle":
                while not sys.stdin.closed and await asyncio.to_thread(sys.stdin.readline):
                    print("still here", flush=True)
    print("stalls", metrics.REGISTRY.get_sample_value("journeyman_event_loop_stalls_total", {"service": "test"}), flush=True)

asyncio.run(main())
"""


def run(how: str, exit_after_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, how, str(exit_after_s)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_blocked_loop_ends_the_process_and_says_where_it_hung() -> None:
    ended = run("python", 2)
    assert ended.returncode == EXIT_STATUS
    assert "which runs the loop" in ended.stderr
    assert "blocked_in_python" in ended.stderr
    # Once as a warning, once at the end.
    assert ended.stderr.count("the stacks:") == 1
    assert ended.stderr.count("The stacks:") == 1


def test_even_a_body_that_holds_the_interpreter_is_ended() -> None:
    ended = run("interpreter", 0.5)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "re/__init__.py" in ended.stderr


def test_short_stalls_are_counted_once_each_and_end_nothing() -> None:
    ended = run("short", 20)
    assert ended.returncode == 0, ended.stderr
    assert "stalls 2.0" in ended.stdout
    assert ended.stderr.count("the event loop runs again") == 2


def test_a_busy_loop_is_not_a_blocked_one() -> None:
    ended = run("busy", 2)
    assert ended.returncode == 0, ended.stderr
    assert "stalls None" in ended.stdout


def test_time_in_which_the_whole_process_stood_still_does_not_count(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "idle", "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "watched\n"
        os.kill(process.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped > 4)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "still here\n"
        process.stdin.close()
        assert process.wait(20) == 0
