"""A task that goes on as a new run again and again: no signal is lost, no step is done twice, its children stay with it.

The test servers suggest a new run after ``support.stack.RUN_EVENTS`` events, some six turns.
"""

import asyncio
import random
from itertools import cycle

import pytest
from temporalio.client import Client

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.names import SUBTASK_WORKFLOW, TASK_WORKFLOW
from journeyman.platform.kit.temporal import connect
from support.platform import TERMINAL, Outcome, Platform
from support.scripts import approve, coder, plan, planner, reject, reviewer, shell, work
from support.stack import kill_and_wait

PLANNER, CODER, REVIEWER = 14, 44, 10


@pytest.fixture
async def temporal(full_stack: EmbeddedStack) -> Client:
    return await connect(full_stack.settings)


def threads(turns: int = CODER) -> list[dict[str, object]]:
    """A long talk of every role. Each step of the Coder appends a line: one lost or repeated shows in the file."""
    half = turns // 2
    return [
        planner(*(shell(f"echo plan {n}") for n in range(PLANNER)), plan()),
        coder(
            *(shell(f"echo {n} >> log") for n in range(half)),
            work(),
            *(shell(f"echo {n} >> log") for n in range(half, turns)),
            work(),
        ),
        reviewer(*(shell(f"echo look {n}") for n in range(REVIEWER)), reject("Half of it is missing.")),
        reviewer(shell("wc -l log"), approve(), round_=2),
    ]


def acceptance(turns: int = CODER) -> list[str]:
    return [f'test "$(cat log)" = "$(seq 0 {turns - 1})"']


async def runs(temporal: Client, task_id: str, type_: str) -> int:
    """How many runs of the task's workflow, or of all its subtasks' together, there were."""
    prefix = f"WorkflowId = '{task_id}'" if type_ == TASK_WORKFLOW else f"WorkflowId STARTS_WITH '{task_id}/'"
    return (await temporal.count_workflows(f"WorkflowType = '{type_}' AND {prefix}")).count


def check(outcome: Outcome) -> None:
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert outcome.task["verified"] is True
    calls = [event["data"]["call_id"] for event in outcome.of("agent.tool_call")]
    results = [event["data"]["call_id"] for event in outcome.of("agent.tool_result")]
    assert len(calls) == len(set(calls))
    assert sorted(calls) == sorted(results)
    answers = [event["data"]["step"] for event in outcome.of("model.completed") if event["data"]["role"] == "coder"]
    assert answers == list(range(CODER + 2))
    assert len(outcome.of("task.completed")) == 1


@pytest.mark.slow
async def test_signals_around_every_boundary_are_heard(platform: Platform, temporal: Client) -> None:
    task_id = await platform.submit(threads(), acceptance=acceptance())
    rng = random.Random(8)
    pauses = 0
    while (await platform.task(task_id))["state"] not in TERMINAL:
        response = await platform.client.post(f"/v1/tasks/{task_id}/pause")
        if response.status_code == 409:
            break
        pauses += 1
        await asyncio.sleep(rng.uniform(0, 0.4))
        response = await platform.client.post(f"/v1/tasks/{task_id}/resume")
        if response.status_code == 409:  # it was about to end when the pause came
            break
        # A resume that was lost on its way would leave the task standing still for ever.
        assert response.json()["paused_reason"] is None
        await asyncio.sleep(rng.uniform(0, 0.8))
    outcome = await platform.end(task_id, 300)
    check(outcome)
    assert pauses > 5
    assert len(outcome.of("task.paused")) == pauses
    assert pauses - len(outcome.of("task.resumed")) in {0, 1}
    assert await runs(temporal, task_id, TASK_WORKFLOW) >= 2
    assert await runs(temporal, task_id, SUBTASK_WORKFLOW) >= 6


async def test_a_pause_at_a_boundary_holds_in_the_next_run(platform: Platform, temporal: Client) -> None:
    """Paused at whatever moment, nothing goes on until the resume, in whichever run that is."""
    task_id = await platform.submit(threads(24), acceptance=acceptance(24))
    rng = random.Random(5)
    for _ in range(4):
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        await platform.client.post(f"/v1/tasks/{task_id}/pause")
        await platform.wait_until_still(task_id, quiet_s=2)
        started = sum(event["type"] == "model.started" for event in await platform.events(task_id))
        await asyncio.sleep(0.5)
        assert sum(event["type"] == "model.started" for event in await platform.events(task_id)) == started
        await platform.client.post(f"/v1/tasks/{task_id}/resume")
    outcome = await platform.end(task_id, 300)
    assert outcome.task["verified"] is True
    assert await runs(temporal, task_id, SUBTASK_WORKFLOW) >= 2


@pytest.mark.slow
async def test_a_cancel_is_heard_whenever_it_comes(platform: Platform) -> None:
    rng = random.Random(2)
    tasks = [await platform.submit(threads()) for _ in range(4)]

    async def cancel(task_id: str, after_s: float) -> str:
        await asyncio.sleep(after_s)
        response = await platform.client.post(f"/v1/tasks/{task_id}/cancel")
        assert response.status_code < 400
        return (await platform.end(task_id, 60)).task["state"]

    ends = await asyncio.gather(*(cancel(task_id, rng.uniform(1, 15)) for task_id in tasks))
    assert set(ends) == {"cancelled"}


@pytest.mark.slow
async def test_workers_are_killed_all_the_while(
    platform: Platform, full_stack: EmbeddedStack, temporal: Client
) -> None:
    task_id = await platform.submit(threads(), acceptance=acceptance())
    rng = random.Random(3)
    for name in cycle(("worker-1", "worker-2")):
        await asyncio.sleep(rng.uniform(0.5, 2))
        if (await platform.task(task_id))["state"] in TERMINAL:
            break
        await kill_and_wait(full_stack, name, 60)
    check(await platform.end(task_id, 300))
    assert await runs(temporal, task_id, SUBTASK_WORKFLOW) >= 6


async def test_a_subtask_in_its_second_run_is_cancelled(platform: Platform, temporal: Client) -> None:
    task_id = await platform.submit(
        [planner(plan()), coder(*(shell(f"echo {n}") for n in range(30)), shell("sleep 300"))]
    )
    await platform.wait_until(
        task_id, lambda events: any("sleep 300" in str(event["data"]) for event in events), timeout_s=150
    )
    assert await runs(temporal, task_id, SUBTASK_WORKFLOW) > 1
    await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    assert (await platform.end(task_id)).task["state"] == "cancelled"
