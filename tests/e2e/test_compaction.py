"""Conversations that outgrow the model's context: what survives their summaries, in the requests that reach the engine.

A turn's ``usage`` says how full the context is, so that the script decides when a summary is due. The summary itself is the
text of the turn that comes next; its calls are not carried out.
"""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from support.platform import Platform
from support.requests import Recorded, conversations
from support.scripts import approve, call, coder, plan, planner, reject, reviewer, shell, work
from support.stack import kill_and_wait

FULL = {"usage": {"prompt_tokens": 95_000, "completion_tokens": 100}}
"""Beyond four fifths of what the test servers' model can read."""
SUMMARY = "I am in the middle of it."


def said(turn: dict[str, Any], text: str = SUMMARY) -> dict[str, Any]:
    return {**turn, "text": text}


def steps(first: int, count: int) -> list[dict[str, Any]]:
    return [said(shell(f"echo step {number} >> log")) for number in range(first, first + count)]


def segments(requests: list[Recorded]) -> list[list[Recorded]]:
    """The requests by opening, each compaction's request for a summary being the last of its segment."""
    found: list[list[Recorded]] = []
    for request in requests:
        if not found or found[-1][-1].segment != request.segment:
            found.append([])
        found[-1].append(request)
    return found


async def test_what_matters_survives_several_compactions(platform: Platform) -> None:
    coders = coder(
        said(call("write_file", path="src/kestrel.py", content="x = 1\n")),
        said(shell("sleep 1000", background=True)),
        said(shell("echo the secret number is 48213"), "I will remove the debug hook before I submit."),
        {**said(shell("true")), **FULL},
        *steps(0, 4),
        {**said(shell("echo more >> log")), **FULL},
        said(call("edit_file", path="log", old="more", new="less")),
        said(work("First.")),
        *steps(10, 2),
        {**said(shell("echo even more >> log")), **FULL},
        said(call("recall", query="what is the secret number")),
        {**said(shell("echo found > found")), "expect": "48213"},
        said(work("Second.")),
    )
    threads = [
        planner(plan()),
        coders,
        reviewer(reject("The kestrel must be blue.")),
        reviewer(approve(), round_=2),
    ]
    instruction = "Keep the kestrel blue.\n\nSubtask: this line is the user's own.\n<so_far>\nso is this\n</so_far>"
    task_id = await platform.submit(threads, instruction=instruction, record=True)
    outcome = await platform.end(task_id, 180)
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert len(outcome.of("agent.compacted")) == 3
    requests = conversations(platform.requests(outcome.task["instruction"]))
    found = segments(next(of for key, of in requests.items() if key[0] == "coder"))
    assert len(found) == 4
    original = found[0][0].segment
    for former, latter in pairwise(found):
        summary = former[-1]
        assert summary.wants_summary
        # The request for a summary is answered from the prefix cache: it only adds to what was sent before.
        assert summary.array.startswith(former[-2].array)
        assert summary.head == former[-2].head
        opening = latter[0].segment
        assert opening.startswith(original)
        assert opening.count("<so_far>") == 2  # the user's own, and the platform's
        assert SUMMARY in opening
        for kept in ("src/kestrel.py", "sleep 1000", "I will remove the debug hook before I submit."):
            assert kept in opening, kept
        assert "48213" not in str(latter[0].messages)
    assert "- log" in found[3][0].segment
    assert "kestrel must be blue" in str(found[3][0].messages)
    assert "48213" in outcome.results("recall")[0]["text"]


@pytest.mark.slow
async def test_summaries_that_do_not_help_pause_the_task(platform: Platform) -> None:
    """Not an endless loop at full price, and not the end of the task either."""
    threads = [
        planner(plan()),
        coder(*(said({**shell(f"echo {number}"), **FULL}) for number in range(20)), work()),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads)
    paused = await platform.wait_for(task_id, lambda task: task["paused_reason"] or task["failure"])
    assert paused["paused_reason"] == "context_exhausted", paused["failure"]
    assert paused["state"] == "running"
    await platform.wait_until_still(task_id)
    events = await platform.events(task_id)
    assert sum(event["type"] == "agent.compacted" for event in events) <= 2
    told = next(event["data"] for event in events if event["type"] == "task.paused")
    assert "longer context" in told["detail"]
    # Nothing has changed: the same again, without another summary.
    await platform.client.post(f"/v1/tasks/{task_id}/resume")
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "context_exhausted")
    assert sum(event["type"] == "agent.compacted" for event in await platform.events(task_id)) <= 2


@pytest.mark.slow
async def test_a_worker_killed_in_the_middle_of_a_compaction(platform: Platform, full_stack: EmbeddedStack) -> None:
    threads = [
        planner(plan()),
        coder(
            *steps(0, 4),
            {**said(shell("echo last of its segment >> log")), **FULL},
            {**said(shell("echo first of the next >> log")), "delay_ms": 4000},
            said(work()),
        ),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads, acceptance=["test $(wc -l < log) = 6"], record=True)
    instruction = (await platform.task(task_id))["instruction"]
    async with asyncio.timeout(120):
        while not any(Recorded.read(body).wants_summary for body in platform.requests(instruction)):
            await asyncio.sleep(0.05)
    for name in ("worker-1", "worker-2"):
        await kill_and_wait(full_stack, name)
    outcome = await platform.end(task_id, 180)
    assert outcome.task["verified"] is True, outcome.task["failure"]
    assert len(outcome.of("agent.compacted")) == 1
    answers = [event["data"]["step"] for event in outcome.of("model.completed") if event["data"]["role"] == "coder"]
    assert answers == list(range(7))
