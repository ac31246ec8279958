"""Plans and tool calls that wait for a person: approved, changed, rejected, expired, withdrawn, whatever is killed meanwhile."""

import asyncio
from typing import Any

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.names import SUBTASK_WORKFLOW
from journeyman.platform.kit.temporal import connect
from support.inbox import Inbox
from support.platform import Platform
from support.scripts import approve, call, coder, plan, planner, reviewer, shell, simple, subtask, work
from support.stack import kill_and_wait


def touch(*names: str) -> dict[str, Any]:
    """One turn that makes these files with a call each."""
    return {"tool_calls": [{"name": "shell", "arguments": {"command": f"touch {name}"}} for name in names]}


RULE = {"rules": [{"tool": "shell", "pattern": "touch ask*", "require": "always"}]}


async def plan_of(platform: Platform, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = await platform.get(f"/v1/tasks/{task_id}/plan")
    return found


def editable(found: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "title", "instructions", "depends_on", "acceptance")
    return {
        "subtasks": [{name: each[name] for name in names} for each in found["subtasks"]],
        "acceptance": found["acceptance"],
    }


async def test_a_plan_is_approved_with_an_edit(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("s1"), subtask("s2", depends_on=["s1"]))),
        coder({**shell("echo x > x"), "expect": "Mind the gap."}, work()),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads, approval_policy={"plan": "always"}, acceptance=["test -e x"])
    inbox = Inbox(platform, task_id)
    (asked,) = await inbox.pending()
    assert (asked["kind"], asked["subject"]) == ("plan", {"revision": 1})
    assert (await platform.task(task_id))["state"] == "awaiting_approval"
    edited = editable(await plan_of(platform, task_id))
    edited["subtasks"] = [edited["subtasks"][0] | {"instructions": "Do s1. Mind the gap."}]
    response = await platform.client.put(f"/v1/tasks/{task_id}/plan", json=edited)
    assert response.status_code == 200, response.text
    response = await platform.client.post(f"/v1/tasks/{task_id}/plan/approve", json={"note": "Go."})
    assert response.status_code == 200, response.text
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True
    assert outcome.task["plan_revision"] == 2
    assert outcome.task["waiting_for"] == []
    assert [event["data"]["plan_revision"] for event in outcome.of("subtask.started")] == [2]
    story = outcome.of("plan.proposed", "approval.requested", "plan.edited", "plan.approved", "approval.decided")
    assert [event["type"] for event in story] == [
        "plan.proposed",
        "approval.requested",
        "plan.edited",
        "plan.approved",
        "approval.decided",
    ]
    states = [event["data"]["to"] for event in outcome.of("task.state_changed")]
    assert states == ["preparing", "planning", "awaiting_approval", "running", "verifying", "succeeded"]


@pytest.mark.slow
async def test_a_rejected_plan_is_made_anew_as_often_as_a_person_likes(platform: Platform) -> None:
    turns = [planner({**plan(), "expect": f"Reason {n - 1}." if n > 1 else ""}, revision=n) for n in range(1, 6)]
    threads = [*turns, coder(shell("echo x > x"), work()), reviewer(approve())]
    task_id = await platform.submit(threads, approval_policy={"plan": "always"}, acceptance=["test -e x"])
    inbox = Inbox(platform, task_id)
    for number in range(1, 5):
        (asked,) = await inbox.pending()
        assert asked["subject"] == {"revision": number}
        response = await platform.client.post(f"/v1/tasks/{task_id}/plan/reject", json={"note": f"Reason {number}."})
        assert response.status_code == 200, response.text
    await inbox.approve_all(1)
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True, outcome.task["failure"]
    assert outcome.task["plan_revision"] == 5
    assert len(outcome.of("plan.rejected")) == 4
    states = [event["data"]["to"] for event in outcome.of("task.state_changed")]
    assert states == ["preparing", *["planning", "awaiting_approval"] * 5, "running", "verifying", "succeeded"]


@pytest.mark.slow
async def test_an_edit_before_a_rejection_keeps_its_number(platform: Platform) -> None:
    threads = [
        planner(plan()),
        planner({**plan(), "expect": "Better not."}, revision=3),
        coder(shell("echo x > x"), work()),
        reviewer(approve()),
    ]
    task_id = await platform.submit(threads, approval_policy={"plan": "always"})
    inbox = Inbox(platform, task_id)
    (asked,) = await inbox.pending()
    edited = editable(await plan_of(platform, task_id)) | {"acceptance": ["false"]}
    response = await platform.client.put(f"/v1/tasks/{task_id}/plan", json=edited)
    assert response.json()["revision"] == 2
    await inbox.decide(asked["id"], "reject", note="Better not.")
    await inbox.approve_all(1)
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert outcome.task["plan_revision"] == 3


async def test_nobody_decides_on_a_plan(platform: Platform) -> None:
    policy = {"plan": "always", "expires_after_s": 2, "escalate_after_s": 1}
    outcome = await platform.run(simple(), approval_policy=policy)
    assert outcome.task["state"] == "failed"
    assert outcome.task["failure"]["code"] == "approval_expired"
    story = outcome.of("approval.requested", "approval.escalated", "plan.rejected", "approval.decided")
    assert [event["type"] for event in story] == [
        "approval.requested",
        "approval.escalated",
        "plan.rejected",
        "approval.decided",
    ]
    assert story[-1]["data"]["decision"] == "expired"
    late = await Inbox(platform, outcome.task["id"]).post(story[0]["data"]["approval_id"], "approve")
    assert (late.status_code, late.json()["code"]) == (409, "approval_expired")


@pytest.mark.slow
async def test_a_policy_may_approve_what_nobody_decides(platform: Platform) -> None:
    policy = {"plan": "always", **RULE, "expires_after_s": 1, "on_expiry": "approve"}
    outcome = await platform.run(simple(touch("ask")), approval_policy=policy, acceptance=["test -e ask"])
    assert outcome.task["verified"] is True, outcome.task["failure"]
    assert [event["data"]["outcome"] for event in outcome.of("approval.decided")] == ["approved", "approved"]


async def test_calls_are_approved_changed_and_rejected(platform: Platform) -> None:
    turn = touch("free", "ask1", "ask2", "ask3", "free2")
    threads = simple(turn, {**shell("true"), "expect": "Use the other file."})
    checks = ["test -e free -a -e free2 -a -e ask1 -a -e other -a ! -e ask2 -a ! -e ask3"]
    task_id = await platform.submit(threads, approval_policy=RULE, acceptance=checks)
    inbox = Inbox(platform, task_id)
    first, second, third = await inbox.pending(3)
    # All are asked for at once, and none of the turn is done before all are decided: calls keep their order.
    assert [each["subject"]["arguments"]["command"] for each in (first, second, third)] == [
        "touch ask1",
        "touch ask2",
        "touch ask3",
    ]
    assert first["subject"]["role"] == "coder"
    assert first["subject"]["reason"] == "A rule of the policy asks for shell matching 'touch ask*'."
    assert (await platform.task(task_id))["state"] == "running"
    await inbox.decide(third["id"], "reject", note="Use the other file.")
    await inbox.decide(first["id"], "approve", note="Fine.")
    assert not any(event["data"]["role"] == "coder" for event in await results(platform, task_id))
    await inbox.decide(second["id"], "approve", edited={"command": "touch other"})
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True, outcome.task["failure"]
    found = [data for data in outcome.results("shell") if data["role"] == "coder"][:5]
    assert [data["ok"] for data in found] == [True, True, True, False, True]
    assert found[1]["text"].startswith("[A person approved this call.\nThey say: Fine.]\n")
    assert 'What was run instead: shell {"command": "touch other"}' in found[2]["text"]
    assert found[3]["text"].startswith("Not run: a person rejected this call.\nThey say: Use the other file.")
    assert found[3]["error"] == "approval_rejected"
    assert found[2]["approval"] == {"id": second["id"], "state": "approved", "edited": True}
    assert "approval" not in found[0]
    assert outcome.task["waiting_for"] == []


async def results(platform: Platform, task_id: str) -> list[dict[str, Any]]:
    return [event for event in await platform.events(task_id) if event["type"] == "agent.tool_result"]


@pytest.mark.slow
async def test_a_change_that_is_no_valid_call_runs_nothing_and_says_so(platform: Platform) -> None:
    task_id = await platform.submit(simple(touch("ask")), approval_policy=RULE, acceptance=["test ! -e ask"])
    inbox = Inbox(platform, task_id)
    (asked,) = await inbox.pending()
    await inbox.decide(asked["id"], "approve", edited={"command": "touch ask", "timeout": 5})
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True
    (result,) = [data for data in outcome.results("shell") if data["role"] == "coder"]
    assert result["error"] == "invalid_arguments"
    assert "but not into a valid one. Nothing was run." in result["text"]
    assert "`timeout` is not an argument of shell" in result["text"]


@pytest.mark.slow
async def test_calls_that_nobody_decides_on_are_not_run(platform: Platform) -> None:
    threads = simple(touch("ask1", "free"), {**shell("true"), "expect": "nobody decided in time"})
    policy = {**RULE, "expires_after_s": 1}
    outcome = await platform.run(threads, approval_policy=policy, acceptance=["test -e free -a ! -e ask1"])
    assert outcome.task["verified"] is True, outcome.task["failure"]
    assert outcome.of("approval.decided")[0]["data"]["decision"] == "expired"


@pytest.mark.slow
async def test_by_the_word_every_changing_call_and_the_plan_is_asked_for(platform: Platform) -> None:
    threads = simple(call("write_file", path="a", content="x"), call("read_file", path="a"), shell("rm a"))
    task_id = await platform.submit(threads, approval_policy="always", acceptance=["test ! -e a"])
    await Inbox(platform, task_id).approve_all(3)
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True
    tools = [event["data"]["subject"].get("tool", "plan") for event in outcome.of("approval.requested")]
    assert tools == ["plan", "write_file", "shell"]


@pytest.mark.slow
async def test_on_risk_asks_for_what_looks_risky(platform: Platform) -> None:
    threads = simple(shell("echo x > x && git push"), shell("ls && echo fine"))
    task_id = await platform.submit(threads, approval_policy="on_risk", acceptance=["test ! -e x"])
    inbox = Inbox(platform, task_id)
    (asked,) = await inbox.pending()
    assert asked["subject"]["reason"] == "It sends commits to another repository: git push"
    await inbox.decide(asked["id"], "reject")
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True
    assert len(outcome.of("approval.requested")) == 1


@pytest.mark.slow
async def test_parallel_subtasks_wait_each_for_itself(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("s1"), subtask("s2"), subtask("s3"))),
        *(coder(touch(f"ask{n}"), work(), subtask_id=f"s{n}") for n in (1, 2)),
        coder(shell("touch free"), work(), subtask_id="s3"),
        *(reviewer(approve(), subtask_id=f"s{n}") for n in (1, 2, 3)),
    ]
    checks = ["test -e ask1 -a -e ask2 -a -e free"]
    task_id = await platform.submit(threads, approval_policy=RULE, acceptance=checks)
    inbox = Inbox(platform, task_id)
    first, second = await inbox.pending(2)
    done = [first, second]
    await platform.wait_until(
        task_id, lambda events: any(e["type"] == "subtask.completed" and e["subtask_id"] == "s3" for e in events)
    )
    await inbox.decide(done[0]["id"], "approve")
    await platform.wait_until(
        task_id,
        lambda events: any(
            e["type"] == "subtask.completed" and e["subtask_id"] == done[0]["subtask_id"] for e in events
        ),
    )
    assert (await platform.task(task_id))["waiting_for"] == [done[1]["id"]]
    await inbox.decide(done[1]["id"], "approve")
    assert (await platform.end(task_id)).task["verified"] is True


async def test_deciding_twice_and_after_a_cancellation(platform: Platform) -> None:
    task_id = await platform.submit(simple(touch("ask1"), touch("ask2")), approval_policy=RULE)
    inbox = Inbox(platform, task_id)
    (first,) = await inbox.pending()
    for _ in range(2):
        assert (await inbox.decide(first["id"], "approve"))["state"] == "approved"
    refused = await inbox.post(first["id"], "reject")
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_decided")
    await platform.wait_until(task_id, lambda events: sum(e["type"] == "approval.requested" for e in events) == 2)
    (second,) = await inbox.pending()
    await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    refused = await inbox.post(second["id"], "approve")
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_withdrawn")
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "cancelled"
    assert outcome.task["waiting_for"] == []
    assert [event["data"]["decision"] for event in outcome.of("approval.decided")] == ["approved", "withdrawn"]


@pytest.mark.slow
async def test_a_task_cancelled_while_its_plan_waits(platform: Platform) -> None:
    task_id = await platform.submit(simple(), approval_policy={"plan": "always"})
    await Inbox(platform, task_id).pending()
    await platform.client.post(f"/v1/tasks/{task_id}/cancel")
    assert (await platform.end(task_id, 20)).task["state"] == "cancelled"
    response = await platform.client.post(f"/v1/tasks/{task_id}/plan/approve")
    assert (response.status_code, response.json()["code"]) == (409, "approval_withdrawn")


@pytest.mark.slow
async def test_a_paused_task_takes_decisions_and_goes_on_when_resumed(platform: Platform) -> None:
    task_id = await platform.submit(simple(touch("ask")), approval_policy=RULE, acceptance=["test -e ask"])
    inbox = Inbox(platform, task_id)
    (asked,) = await inbox.pending()
    await platform.client.post(f"/v1/tasks/{task_id}/pause")
    await inbox.decide(asked["id"], "approve")
    await platform.wait_until_still(task_id)
    assert not any(event["data"]["role"] == "coder" for event in await results(platform, task_id))
    await platform.client.post(f"/v1/tasks/{task_id}/resume")
    assert (await platform.end(task_id)).task["verified"] is True


@pytest.mark.slow
async def test_a_message_that_interrupts_comes_before_the_decision(platform: Platform) -> None:
    threads = simple(touch("ask", "free"), {**shell("true"), "expect": "Leave it."})
    task_id = await platform.submit(threads, approval_policy=RULE, acceptance=["test ! -e ask -a ! -e free"])
    inbox = Inbox(platform, task_id)
    (asked,) = await inbox.pending()
    body = {"text": "Leave it.", "mode": "interrupt"}
    assert (await platform.client.post(f"/v1/tasks/{task_id}/messages", json=body)).is_success
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True, outcome.task["failure"]
    refused = await inbox.post(asked["id"], "approve")
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_withdrawn")
    assert "interrupted the agent" in refused.json()["detail"]
    found = [data["text"] for data in outcome.results("shell") if data["role"] == "coder"][:2]
    assert all(text.startswith("Not run: a message from a person came first.") for text in found)


@pytest.mark.slow
async def test_a_wait_goes_on_in_a_new_run(platform: Platform, full_stack: EmbeddedStack) -> None:
    """Runs end between turns and within waits alike: no decision is lost on the way, no call is done twice."""
    count = 9
    threads = simple(*({"tool_calls": [*touch(f"ask{n}")["tool_calls"], *append(n)]} for n in range(count)))
    checks = [f'test "$(cat log)" = "$(seq 0 {count - 1})"']
    task_id = await platform.submit(threads, approval_policy=RULE, acceptance=checks)
    inbox = Inbox(platform, task_id)
    for number in range(count):
        (asked,) = await inbox.pending()
        assert asked["subject"]["arguments"]["command"] == f"touch ask{number}"
        await inbox.decide(asked["id"], "approve" if number % 2 else "reject")
        await platform.wait_until(
            task_id, lambda events, n=number: sum(e["type"] == "approval.decided" for e in events) == n + 1
        )
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True, outcome.task["failure"]
    calls = [event["data"]["call_id"] for event in outcome.of("agent.tool_result")]
    assert len(calls) == len(set(calls))
    temporal = await connect(full_stack.settings)
    runs = await temporal.count_workflows(
        f"WorkflowType = '{SUBTASK_WORKFLOW}' AND WorkflowId STARTS_WITH '{task_id}/'"
    )
    assert runs.count >= 2


def append(number: int) -> list[dict[str, Any]]:
    return [{"name": "shell", "arguments": {"command": f"echo {number} >> log"}}]


async def kill_workers(full_stack: EmbeddedStack) -> None:
    await asyncio.gather(*(kill_and_wait(full_stack, name, 90) for name in ("worker-1", "worker-2")))


async def test_workers_killed_while_an_approval_is_pending(platform: Platform, full_stack: EmbeddedStack) -> None:
    policy = {"plan": "always", **RULE}
    threads = simple(touch("ask1", "ask2"))
    task_id = await platform.submit(threads, approval_policy=policy, acceptance=["test -e ask1 -a ! -e ask2"])
    inbox = Inbox(platform, task_id)
    (asked,) = await inbox.pending()
    killed = asyncio.create_task(kill_workers(full_stack))
    await asyncio.sleep(0)  # the kill is sent before the decision: nobody is there to hear of it
    await inbox.decide(asked["id"], "approve")
    await killed
    first, second = await inbox.pending(2)
    await inbox.decide(first["id"], "approve")
    await kill_workers(full_stack)
    await inbox.decide(second["id"], "reject")
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True, outcome.task["failure"]
    assert len(outcome.of("approval.requested")) == 3
    decisions = [event["data"]["decision"] for event in outcome.of("approval.decided")]
    assert decisions == ["approved", "approved", "rejected"]
    results = [event["data"]["call_id"] for event in outcome.of("agent.tool_result")]
    assert len(results) == len(set(results))


@pytest.mark.slow
async def test_the_api_killed_right_after_it_acknowledged_a_decision(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    threads = simple(touch("ask1"), touch("ask2"))
    checks = ["test -e ask1 -a -e ask2"]
    task_id = await platform.submit(threads, approval_policy=RULE, acceptance=checks)
    inbox = Inbox(platform, task_id)
    for number in range(2):
        await platform.wait_until(
            task_id, lambda events, n=number: sum(e["type"] == "approval.requested" for e in events) == n + 1
        )
        (asked,) = await inbox.pending()
        await inbox.decide(asked["id"], "approve")
        await kill_and_wait(full_stack, "api", 60)
    outcome = await platform.end(task_id, 120)
    assert outcome.task["verified"] is True
    assert len(outcome.of("approval.decided")) == 2
