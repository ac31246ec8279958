"""An agent that neither answers nor dies."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from journeyman.platform.sandboxes.errors import ExecNotFound, SandboxLost
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import ExecRequest, Sandbox, SandboxSpec
from journeyman.platform.sandboxes.registry import Record
from support.sandboxes import SMALL
from support.waiting import until


async def test_a_frozen_agent_counts_as_lost_long_before_the_commands_timeout(tmp_path: Path) -> None:
    driver = LocalSandboxDriver(tmp_path)
    sandbox = await driver.lease(SandboxSpec("sbx_frozen", limits=SMALL))
    record = Record.load(tmp_path / "sbx_frozen")
    assert record is not None
    pid = record.agent.pid
    running = asyncio.create_task(sandbox.run(ExecRequest("a", "sleep 600", timeout_s=600)))
    try:
        # The agent's answer is what is waited for now.
        await until(lambda: _runs(sandbox, "a"))
        os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(30):
            with pytest.raises(SandboxLost):
                await running
    finally:
        os.kill(pid, signal.SIGCONT)
        await driver.release("sbx_frozen")
        await driver.close()


async def _runs(sandbox: Sandbox, exec_id: str) -> bool:
    try:
        return (await sandbox.poll(exec_id)).running
    except ExecNotFound:
        return False
