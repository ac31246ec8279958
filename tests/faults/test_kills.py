"""Any one process is killed while a task is at work: the task ends verified, nothing is lost and nothing doubled."""

import pytest

from journeyman.platform.embedded.stack import EmbeddedStack
from support.platform import Outcome, Platform
from support.scripts import approve, call, coder, plan, planner, reviewer, shell, work
from support.stack import kill_and_wait

PROCESSES = [
    "worker-1",
    "worker-2",
    "gateway",
    "replay-engine",
    "api",
    "postgres",
    "temporal",
    "objects",
    "vectors",
    "embeddings",
]

LINES = 12


def threads() -> list[dict[str, object]]:
    """Each step appends a line: a step lost or repeated shows in the file."""
    steps = [{**shell(f"sleep 0.2; echo {number} >> log"), "delay_ms": 100} for number in range(LINES)]
    return [
        planner(plan()),
        coder(*steps, call("remember", text="The log has twelve lines."), work()),
        reviewer(approve()),
    ]


def check(outcome: Outcome) -> None:
    """The oracle: verified, each call answered once, each step paid at most once beside what is marked as unknown."""
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert outcome.task["verified"] is True
    calls = [event["data"]["call_id"] for event in outcome.of("agent.tool_call")]
    results = [event["data"]["call_id"] for event in outcome.of("agent.tool_result")]
    assert len(calls) == len(set(calls))
    assert sorted(calls) == sorted(results)
    assert len(outcome.of("task.completed")) == 1


@pytest.mark.parametrize("name", PROCESSES)
async def test_kill_one_process(platform: Platform, full_stack: EmbeddedStack, name: str) -> None:
    wanted = "".join(f"{number}\\n" for number in range(LINES))
    task_id = await platform.submit(threads(), acceptance=[f'test "$(cat log)" = "$(printf \'{wanted}\')"'])
    await platform.wait_until_event(task_id, "agent.tool_result")
    await kill_and_wait(full_stack, name, 60)
    check(await platform.end(task_id, 120))
