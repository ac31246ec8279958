"""Any one process is killed while a task is at work: the task ends verified, nothing is lost and nothing doubled."""

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from support.oracle import check_verified
from support.platform import Platform
from support.scripts import approve, call, coder, plan, planner, reviewer, shell, work
from support.stack import kill_and_wait

PROCESSES = ["worker-1", "gateway", "postgres", "temporal", "objects"]
FURTHER = ["worker-2", "fork-server", "replay-engine", "api", "vectors", "embeddings"]

LINES = 12


def threads() -> list[dict[str, object]]:
    """Each step appends a line: a step lost or repeated shows in the file."""
    steps = [{**shell(f"sleep 0.2; echo {number} >> log"), "delay_ms": 100} for number in range(LINES)]
    return [
        planner(plan()),
        coder(*steps, call("remember", text="The log has twelve lines."), work()),
        reviewer(approve()),
    ]


@pytest.mark.parametrize("name", [*PROCESSES, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
async def test_kill_one_process(platform: Platform, full_stack: EmbeddedStack, name: str) -> None:
    task_id = await platform.submit(threads(), acceptance=[f'test "$(cat log)" = "$(seq 0 {LINES - 1})"'])
    await platform.wait_until_event(task_id, "agent.tool_result")
    await kill_and_wait(full_stack, name, 60)
    await check_verified(full_stack, await platform.end(task_id, 120))
