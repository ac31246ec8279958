"""An agent that neither answers nor dies."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from support.sandboxes import SMALL

from journeyman.platform.sandboxes.errors import SandboxLost
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import ExecRequest, SandboxSpec


def agent_of(root: Path, sandbox_id: str) -> int:
    """Process id of the sandbox's agent: the last of the chain that its registered process begins."""
    texts = [path.read_text() for path in (root / sandbox_id).glob("*.json")]
    pid = next(int(found["pid"]) for found in map(json.loads, texts) if "pid" in found)
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


async def test_a_frozen_agent_counts_as_lost_long_before_the_commands_timeout(tmp_path: Path) -> None:
    driver = LocalSandboxDriver(tmp_path)
    sandbox = await driver.lease(SandboxSpec("sbx_frozen", limits=SMALL))
    pid = agent_of(tmp_path, "sbx_frozen")
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
