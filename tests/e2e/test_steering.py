"""Messages from people to running tasks: queued, interrupting, early, late, and sent twice."""

import asyncio

import pytest

from support.platform import Platform
from support.scripts import approve, coder, plan, planner, reviewer, shell, work


async def say(platform: Platform, task_id: str, text: str, mode: str = "queue", key: str | None = None) -> dict:
    headers = {"Idempotency-Key": key} if key else {}
    response = await platform.client.post(
        f"/v1/tasks/{task_id}/messages", json={"text": text, "mode": mode}, headers=headers
    )
    assert response.status_code in {200, 201}, response.text
    return response.json()


async def test_a_queued_message_is_read_at_the_next_step_by_every_agent(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder(shell("sleep 1.5"), {**shell("true"), "expect": "purple paint"}, work()),
        reviewer({**approve(), "expect": "purple paint"}),
    ]
    task_id = await platform.submit(threads)
    await platform.wait_until_event(task_id, "agent.tool_call")
    await platform.wait_until(task_id, lambda events: any("sleep 1.5" in str(event["data"]) for event in events))
    sent = await say(platform, task_id, "Use the purple paint.")
    assert (sent["number"], sent["state"]) == (1, "received")
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert len(outcome.of("message.received")) == 1
    assert [event["data"]["role"] for event in outcome.of("message.delivered")] == ["coder", "reviewer"]
    assert len(outcome.of("message.acted_on")) == 1
    seqs = {
        type_: outcome.of(type_)[0]["seq"] for type_ in ("message.received", "message.delivered", "message.acted_on")
    }
    assert sorted(seqs.values()) == list(seqs.values())
    listed = (await platform.get(f"/v1/tasks/{task_id}/messages"))["data"]
    assert [message["state"] for message in listed] == ["acted_on"]


async def test_an_interruption_ends_the_command_and_the_rest_of_its_turn(platform: Platform) -> None:
    batch = {
        "tool_calls": [
            {"name": "shell", "arguments": {"command": "echo begun; sleep 300; echo never > never"}},
            {"name": "shell", "arguments": {"command": "echo never > never"}},
            {"name": "submit_work", "arguments": {"summary": "Never."}},
        ]
    }
    threads = [
        planner(plan()),
        coder(batch, {**shell("test ! -e never && echo now > now"), "expect": "Stop that."}, work()),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads, acceptance=["test -e now"])
    await platform.wait_until(task_id, lambda events: any("sleep 300" in str(event["data"]) for event in events))
    await asyncio.sleep(1)  # the command runs by now, or is about to: both must end well
    await say(platform, task_id, "Stop that.", "interrupt")
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True
    first, second, third = outcome.results()[1:4]
    assert {first["error"], second["error"], third["error"]} == {"interrupted"}
    assert "begun" in first["text"]
    assert "interrupted by a message" in first["text"]
    assert second["text"].startswith("Not run")
    assert outcome.results()[4]["ok"]


async def test_an_interruption_ends_a_model_call(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder({**shell("true"), "fault": {"kind": "timeout", "seconds": 300}}, work()),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads)
    await platform.wait_until(
        task_id,
        lambda events: any(event["type"] == "model.started" and event["data"]["role"] == "coder" for event in events),
    )
    await say(platform, task_id, "Hurry.", "interrupt")
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded"
    started = [event for event in outcome.of("model.started") if event["data"]["role"] == "coder"]
    assert len(started) == 3  # the one that was interrupted, and two that were answered


async def test_a_message_to_verified_work_is_planned_for(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder(shell("true"), work()),
        reviewer(approve()),
        planner({**plan(), "expect": "one more thing"}, revision=2),
    ]
    task_id = await platform.submit(threads, acceptance=["sleep 2"])
    await platform.wait_for(task_id, lambda task: task["state"] == "verifying")
    await say(platform, task_id, "There is one more thing.")
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True
    assert len(outcome.of("plan.revised")) == 1
    assert outcome.of("message.acted_on")


async def test_a_message_before_the_first_step_is_told_to_the_planner(platform: Platform) -> None:
    task_id = await platform.submit(
        [planner({**plan(), "expect": "early bird"}), coder(shell("true"), work()), reviewer(approve())]
    )
    await say(platform, task_id, "The early bird.")
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded"
    assert [event["data"]["role"] for event in outcome.of("message.delivered")] == ["planner", "coder", "reviewer"]


async def test_sent_twice_is_told_once(platform: Platform) -> None:
    task_id = await platform.submit([planner(plan()), coder(shell("sleep 2"), work()), reviewer(approve())])
    sent = [await say(platform, task_id, "Once.", key=f"{task_id}-1") for _ in range(3)]
    assert len({message["id"] for message in sent}) == 1
    clash = await platform.client.post(
        f"/v1/tasks/{task_id}/messages", json={"text": "Twice."}, headers={"Idempotency-Key": f"{task_id}-1"}
    )
    assert clash.json()["code"] == "idempotency_key_reused"
    outcome = await platform.end(task_id)
    assert len(outcome.of("message.received")) == 1
    late = await platform.client.post(f"/v1/tasks/{task_id}/messages", json={"text": "Too late."})
    assert late.status_code == 409
    assert late.json()["code"] == "task_ended"


@pytest.mark.parametrize(
    "body", [{}, {"text": ""}, {"text": "a\x00b"}, {"text": "x", "mode": "shout"}, {"text": "x" * 70_000}, {"text": 5}]
)
async def test_a_message_that_cannot_be_taken_is_refused_by_name(platform: Platform, body: dict) -> None:
    task_id = await platform.submit([planner(plan()), coder(shell("true"), work()), reviewer(approve())])
    response = await platform.client.post(f"/v1/tasks/{task_id}/messages", json=body)
    assert response.status_code == 422
    assert ("mode" if "mode" in body else "text") in response.text
    assert (await platform.get(f"/v1/tasks/{task_id}/messages"))["data"] == []
    assert (await platform.client.post("/v1/tasks/task_0/messages", json={"text": "x"})).status_code == 404
    await platform.end(task_id)
