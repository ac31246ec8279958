"""Rewinds and forks over the whole running platform."""

import asyncio
from typing import Any

import httpx
import pytest

from support.platform import Outcome, Platform
from support.scripts import Turn, approve, coder, plan, planner, reviewer, shell, subtask, work

LINES = 6


def steps(count: int = LINES, *, delay_ms: int = 100) -> list[Turn]:
    """Each appends a line, so that a step that is lost or repeated shows in the file."""
    return [{**shell(f"echo {number} >> log"), "delay_ms": delay_ms} for number in range(count)]


def threads(*turns: Turn) -> list[dict[str, Any]]:
    return [planner(plan()), coder(*(turns or steps()), work()), reviewer(approve())]


def lines(count: int = LINES) -> str:
    wanted = "".join(f"{number}\\n" for number in range(count))
    return f'test "$(cat log)" = "$(printf \'{wanted}\')"'


async def checkpoints(platform: Platform, task_id: str, role: str = "coder") -> list[dict[str, Any]]:
    """Those of the threads of a role, the oldest first."""
    found = (await platform.get(f"/v1/tasks/{task_id}/checkpoints", limit=100))["data"]
    events = await platform.events(task_id)
    roles = {event["thread_id"]: event["data"]["role"] for event in events if event["type"] == "model.completed"}
    return [one for one in reversed(found) if roles.get(one["thread_id"]) == role]


async def wait_for_checkpoints(
    platform: Platform, task_id: str, count: int, role: str = "coder"
) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        while len(found := await checkpoints(platform, task_id, role)) < count:
            await asyncio.sleep(0.05)
    return found


async def post(platform: Platform, task_id: str, what: str, **body: Any) -> httpx.Response:
    return await platform.client.post(f"/v1/tasks/{task_id}/{what}", json=body)


async def rewound(platform: Platform, task_id: str, rewind_id: str) -> dict[str, Any]:
    """The rewind, once it is applied."""
    async with asyncio.timeout(30):
        while True:
            rewinds = (await platform.get(f"/v1/tasks/{task_id}/rewinds"))["data"]
            found = next(one for one in rewinds if one["id"] == rewind_id)
            if found["applied_at"] is not None:
                return found
            await asyncio.sleep(0.05)


async def fork(platform: Platform, task_id: str, checkpoint_id: str, **body: Any) -> str:
    response = await post(platform, task_id, "fork", checkpoint_id=checkpoint_id, **body)
    assert response.status_code == 201, response.text
    fork_id: str = response.json()["id"]
    platform.submitted.append(fork_id)
    return fork_id


def verified(outcome: Outcome) -> None:
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert outcome.task["verified"] is True
    calls = [event["data"]["call_id"] for event in outcome.of("agent.tool_call")]
    assert len(calls) == len(set(calls))


async def test_a_running_task_is_taken_back_and_ends_verified(platform: Platform) -> None:
    task_id = await platform.submit(threads(*steps(delay_ms=300)), acceptance=[lines()])
    second = (await wait_for_checkpoints(platform, task_id, 4))[1]
    asked = await post(platform, task_id, "rewind", checkpoint_id=second["id"], message="Mind the order.")
    assert asked.status_code == 202
    done = await rewound(platform, task_id, asked.json()["id"])
    assert done["epoch"] == 1
    outcome = await platform.end(task_id)
    verified(outcome)
    (event,) = outcome.of("task.rewound")
    assert event["data"]["to_seq"] == second["event_seq"]
    assert [step["type"] for step in outcome.of("message.received", "message.delivered", "message.acted_on")] == [
        "message.received",
        "message.delivered",
        "message.acted_on",
        "message.delivered",
        "message.acted_on",
    ][: len(outcome.of("message.received", "message.delivered", "message.acted_on"))]
    # The coder's conversation goes on in a copy, and it is told.
    new = {new: old for new, old in event["data"]["threads"].items() if old == second["thread_id"]}
    assert len(new) == 1
    assert outcome.task["epoch"] == 1
    after = [one for one in outcome.events if one["seq"] > event["seq"]]
    assert second["thread_id"] not in {one["thread_id"] for one in after}


@pytest.mark.slow
async def test_twice_and_forward_again(platform: Platform) -> None:
    task_id = await platform.submit(threads(*steps(delay_ms=300)), acceptance=[lines()])
    made = await wait_for_checkpoints(platform, task_id, 4)
    for wanted in (made[0], made[3], made[1]):
        asked = await post(platform, task_id, "rewind", checkpoint_id=wanted["id"])
        await rewound(platform, task_id, asked.json()["id"])
    outcome = await platform.end(task_id)
    verified(outcome)
    assert outcome.task["epoch"] == 3


async def test_two_at_once_are_applied_in_order(platform: Platform) -> None:
    task_id = await platform.submit(threads(*steps(delay_ms=300)), acceptance=[lines()])
    made = await wait_for_checkpoints(platform, task_id, 3)
    asked = await asyncio.gather(
        *(post(platform, task_id, "rewind", checkpoint_id=one["id"]) for one in (made[0], made[2], made[1]))
    )
    assert [response.status_code for response in asked] == [202, 202, 202]
    outcome = await platform.end(task_id)
    verified(outcome)
    listed = (await platform.get(f"/v1/tasks/{task_id}/rewinds"))["data"]
    assert sorted(one["epoch"] for one in listed) == [1, 2, 3]
    assert [event["data"]["rewind_id"] for event in outcome.of("task.rewound")] == [
        one["id"] for one in sorted(listed, key=lambda one: one["epoch"])
    ]


@pytest.mark.slow
async def test_back_to_the_plan_and_to_a_hand_over(platform: Platform) -> None:
    script = [planner(plan()), coder(*steps(), work()), reviewer({**shell("cat log"), "delay_ms": 3000}, approve())]
    task_id = await platform.submit(script, acceptance=[lines()])
    await wait_for_checkpoints(platform, task_id, 2)
    (planned,) = await checkpoints(platform, task_id, "planner")
    assert planned["submitted"] is True
    asked = await post(platform, task_id, "rewind", checkpoint_id=planned["id"])
    await rewound(platform, task_id, asked.json()["id"])
    async with asyncio.timeout(60):
        while not (handed_over := [one for one in await checkpoints(platform, task_id) if one["submitted"]]):
            await asyncio.sleep(0.05)
    asked = await post(platform, task_id, "rewind", checkpoint_id=handed_over[0]["id"])
    assert asked.status_code == 202
    await rewound(platform, task_id, asked.json()["id"])
    outcome = await platform.end(task_id)
    verified(outcome)
    assert len(outcome.of("plan.proposed")) == 1


@pytest.mark.slow
async def test_a_paused_task_is_taken_back_and_stays_paused(platform: Platform) -> None:
    task_id = await platform.submit(threads(*steps(delay_ms=300)), acceptance=[lines()])
    first = (await wait_for_checkpoints(platform, task_id, 2))[0]
    await platform.client.post(f"/v1/tasks/{task_id}/pause")
    asked = await post(platform, task_id, "rewind", checkpoint_id=first["id"])
    await rewound(platform, task_id, asked.json()["id"])
    await platform.wait_until_still(task_id)
    task = await platform.task(task_id)
    assert (task["state"], task["paused_reason"], task["epoch"]) == ("running", "user", 1)
    await platform.client.post(f"/v1/tasks/{task_id}/resume")
    verified(await platform.end(task_id))


@pytest.mark.slow
async def test_what_the_circuit_breaker_saw_is_undone(platform: Platform) -> None:
    turns = [shell("echo 0 >> log"), {**shell("cat nothing"), "repeat": 6}, *steps()[1:]]
    task_id = await platform.submit(threads(*turns), acceptance=[lines()])
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "circuit_breaker")
    first = (await checkpoints(platform, task_id))[0]
    asked = await post(platform, task_id, "rewind", checkpoint_id=first["id"])
    await rewound(platform, task_id, asked.json()["id"])
    # It goes on by itself, does the same again, and trips again: with the workflow's pause lifted, and counted anew.
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "circuit_breaker" and task["epoch"] == 1)
    assert len([one for one in await platform.events(task_id) if one["type"] == "circuit_breaker.tripped"]) == 2
    await platform.client.post(f"/v1/tasks/{task_id}/resume")
    verified(await platform.end(task_id))


@pytest.mark.slow
async def test_parallel_subtasks_are_taken_back_together(platform: Platform) -> None:
    turns = {name: [{**shell(f"echo {n} >> {name}"), "delay_ms": 250} for n in range(4)] for name in ("a", "b")}
    script = [
        planner(plan(subtask("a"), subtask("b"))),
        *(coder(*turns[name], work(), subtask_id=name) for name in ("a", "b")),
        *(reviewer(approve(), subtask_id=name) for name in ("a", "b")),
    ]
    check = "test \"$(cat a b | tr '\\n' ' ')\" = '0 1 2 3 0 1 2 3 '"
    task_id = await platform.submit(script, acceptance=[check])
    made = await wait_for_checkpoints(platform, task_id, 4)
    asked = await post(platform, task_id, "rewind", checkpoint_id=made[2]["id"])
    await rewound(platform, task_id, asked.json()["id"])
    outcome = await platform.end(task_id)
    verified(outcome)
    assert len(outcome.of("subtask.completed")) == 2


@pytest.mark.slow
async def test_a_cancellation_wins_over_a_rewind(platform: Platform) -> None:
    task_id = await platform.submit(threads(*steps(delay_ms=300)))
    first = (await wait_for_checkpoints(platform, task_id, 2))[0]
    asked, cancelled = await asyncio.gather(
        post(platform, task_id, "rewind", checkpoint_id=first["id"]),
        platform.client.post(f"/v1/tasks/{task_id}/cancel"),
    )
    assert cancelled.status_code == 200
    assert asked.status_code in {202, 409}
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "cancelled"
    refused = await post(platform, task_id, "rewind", checkpoint_id=first["id"])
    assert (refused.status_code, refused.json()["code"]) == (409, "task_ended")
    assert "ork" in refused.json()["detail"]


async def test_a_fork_of_a_running_task(platform: Platform) -> None:
    task_id = await platform.submit(threads(*steps(delay_ms=300)), acceptance=[lines()])
    second = (await wait_for_checkpoints(platform, task_id, 3))[1]
    fork_id = await fork(platform, task_id, second["id"])
    one, other = await asyncio.gather(platform.end(task_id), platform.end(fork_id))
    verified(one)
    verified(other)
    assert "task.rewound" not in one.types
    assert other.types[:2] == ["task.created", "task.forked"]
    # The first two steps were the other's: they are neither done nor paid for again.
    assert len(other.results("shell")) == LINES - 2
    assert other.task["inherited"]["steps"] == 3
    usage = await platform.get(f"/v1/tasks/{fork_id}/usage")
    assert usage["inherited"]["steps"] == 3
    assert usage["calls"] == len(other.of("model.completed"))


async def test_a_fork_of_an_ended_task_with_another_instruction(platform: Platform) -> None:
    ended = await platform.run(threads(), acceptance=[lines()])
    verified(ended)
    script = [planner(plan()), coder(*steps(3), shell("echo x >> log"), work()), reviewer(approve())]
    instruction = platform.register(script)
    third = (await checkpoints(platform, ended.task["id"]))[2]
    fork_id = await fork(platform, ended.task["id"], third["id"], instruction=instruction, budget={"max_steps": 100})
    outcome = await platform.end(fork_id)
    # The opening is that of the first task, and so are the answers that follow from it; the Reviewer's is the new one.
    assert outcome.task["state"] == "succeeded"
    assert outcome.task["instruction"] == instruction
    assert outcome.task["budget"] == {"max_steps": 100}
    told = outcome.of("message.delivered")
    assert {event["data"]["role"] for event in told} == {"coder", "reviewer"}
    assert (await platform.task(ended.task["id"])) == ended.task


@pytest.mark.slow
async def test_a_fork_from_the_reviewers_verdict_only_verifies(platform: Platform) -> None:
    ended = await platform.run(threads(), acceptance=[lines()])
    (verdict,) = await checkpoints(platform, ended.task["id"], "reviewer")
    fork_id = await fork(platform, ended.task["id"], verdict["id"])
    outcome = await platform.end(fork_id)
    verified(outcome)
    assert outcome.of("model.started") == []
    assert len(outcome.of("acceptance.passed")) == 1
