"""A worker whose clock is an hour off does the same work: no timer fires early, no lease counts as run out.

Needs ``libfaketime``: of the system (Debian: ``apt install libfaketime``) or of the Python package of that name.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from journeyman.apps.embedded.roles import environment_of, journeyman_command
from journeyman.apps.embedded.stack import EmbeddedStack
from support.holding import frozen
from support.oracle import check_verified
from support.platform import Platform
from support.scripts import approve, coder, plan, planner, reviewer, shell, work
from support.stack import part_of


def library() -> Path | None:
    spec = find_spec("libfaketime")
    places = [Path(spec.origin).parent] if spec is not None and spec.origin is not None else []
    for place in [*places, Path("/usr/lib")]:
        found = sorted(place.rglob("libfaketime.so.1"))
        if found:
            return found[0]
    return None


@asynccontextmanager
async def only_worker(stack: EmbeddedStack, offset: str, log: Path) -> AsyncIterator[None]:
    """The workers of the stack stand still; one with its clock set off does their work."""
    preload = library()
    assert preload is not None
    # The monotonic clock is off as well, which shows nowhere: left alone, this library breaks sleeping by it.
    clock = {"LD_PRELOAD": str(preload), "FAKETIME": offset, "NO_FAKE_STAT": "1"}
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*journeyman_command(), "worker"], env=environment_of(stack.settings) | clock, stdout=output, stderr=output
        )
    try:
        async with AsyncExitStack() as standing:
            for name in ("worker-1", "worker-2"):
                pid = part_of(stack, name).pid
                assert pid is not None
                await standing.enter_async_context(frozen(pid))
            yield
    finally:
        worker.terminate()
        await asyncio.to_thread(worker.wait, 60)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(library() is None, reason="there is no libfaketime here, so no process can be given another clock")
@pytest.mark.parametrize("offset", ["+1h", "-1h"])
async def test_a_worker_an_hour_off(platform: Platform, full_stack: EmbeddedStack, tmp_path: Path, offset: str) -> None:
    steps = [{**shell(f"sleep 0.2; echo {number} >> log"), "delay_ms": 200} for number in range(6)]
    fault = {"kind": "status", "status": 503, "times": 2}
    threads = [planner(plan()), coder(*steps, {**shell("date"), "fault": fault}, work()), reviewer(approve())]
    async with only_worker(full_stack, offset, tmp_path / "worker.log"):
        task_id = await platform.submit(threads, acceptance=['test "$(cat log)" = "$(seq 0 5)"'])
        outcome = await platform.end(task_id, 200)
    log = await check_verified(full_stack, outcome)
    assert log.recovery["void step"] == 0
    assert outcome.of("sandbox.replaced") == []
