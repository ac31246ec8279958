"""An agent that neither answers nor dies."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from journeyman.platform.sandboxes.errors import SandboxLost
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import ExecRequest, SandboxSpec
from journeyman.platform.sandboxes.registry import Record
from support.sandboxes import SMALL


async def test_a_frozen_agent_counts_as_lost_long_before_the_commands_timeout(tmp_path: Path) -> None:
    driver = LocalSandboxDriver(tmp_path)
    sandbox = await driver.lease(SandboxSpec("sbx_frozen", limits=SMALL))
    record = Record.load(tmp_path / "sbx_frozen")
    assert record is not None
    pid = record.agent.pid
    running = asyncio.create_task(sandbox.run(ExecRequest("a", "sleep 600", timeout_s=600)))
    try:
        await asyncio.sleep(0.5)  # the command is running now, and the agent's answer is what is waited for
        os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(30):
            with pytest.raises(SandboxLost):
                await running
    finally:
        os.kill(pid, signal.SIGCONT)
        await driver.release("sbx_frozen")
        await driver.close()
