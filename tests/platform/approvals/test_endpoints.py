"""The inbox, the policy and the plan over REST."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from journeyman.platform.approvals import service
from journeyman.platform.approvals.models import Approval
from journeyman.platform.approvals.service import Ask
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.plans import repository as plans
from journeyman.platform.tasks.contract import TaskState
from journeyman.platform.tasks.models import Task
from support.api import Caller, RunningApi, fields_of
from support.rows import make_task

SUBTASK = {"id": "s1", "title": "One", "instructions": "Do it.", "depends_on": [], "acceptance": ["true"]}


async def asking(api: RunningApi, caller: Caller, *names: str) -> list[str]:
    """A running task that asks for these calls; the ids of the approvals."""
    task_id = await make_task(api.database, caller.project_id, state="running")
    asks = [Ask("tool_call", {"tool": "shell", "arguments": {"command": name}}, f"{task_id}:{name}") for name in names]
    async with api.database.transaction() as session:
        return [each.id for each in await service.request(session, task_id, asks)]


async def planned(api: RunningApi, caller: Caller) -> tuple[str, str]:
    """A task whose plan waits: its id and the approval's."""
    task_id = await make_task(api.database, caller.project_id, state="planning")
    async with api.database.transaction() as session:
        await plans.add_revision(
            session,
            project_id=caller.project_id,
            task_id=task_id,
            revision=1,
            subtasks=[SUBTASK],
            acceptance=[],
            reason=None,
        )
        await session.execute(sa.update(Task).where(Task.id == task_id).values(plan_revision=1))
        await lifecycle.transition(session, task_id, TaskState.AWAITING_APPROVAL)
        (asked,) = await service.request(session, task_id, [Ask("plan", {"revision": 1}, f"{task_id}:plan:1")])
    return task_id, asked.id


async def types(caller: Caller, task_id: str) -> list[str]:
    events = (await caller.get(f"/v1/tasks/{task_id}/events", params={"limit": 100})).json()["data"]
    return [event["type"] for event in events]


async def test_the_inbox_is_filtered_and_paged(api: RunningApi, caller: Caller) -> None:
    ids = await asking(api, caller, *(f"c{number}" for number in range(5)))
    for approval_id in ids[:2]:
        response = await caller.post(f"/v1/approvals/{approval_id}", json={"decision": "approve"})
        assert response.status_code == 200, response.text
    seen: list[str] = []
    cursor = None
    while True:
        query = {"state": "pending", "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await caller.get("/v1/approvals", params=query)).json()
        seen += [each["id"] for each in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(ids[2:])
    task_id = (await caller.get(f"/v1/approvals/{ids[0]}")).json()["task_id"]
    of_task = (await caller.get("/v1/approvals", params={"task_id": task_id, "kind": "tool_call"})).json()["data"]
    assert len(of_task) == 5
    assert (await caller.get("/v1/approvals", params={"kind": "plan"})).json()["data"] == []
    task = (await caller.get(f"/v1/tasks/{task_id}")).json()
    assert sorted(task["waiting_for"]) == sorted(ids[2:])
    async with api.caller() as stranger:
        assert (await stranger.get("/v1/approvals")).json()["data"] == []
        assert (await stranger.get(f"/v1/approvals/{ids[4]}")).status_code == 404
        refused = await stranger.post(f"/v1/approvals/{ids[4]}", json={"decision": "approve"})
        assert (refused.status_code, refused.json()["code"]) == (404, "approval_not_found")


async def test_deciding_twice(api: RunningApi, caller: Caller) -> None:
    (approval_id,) = await asking(api, caller, "git push")
    address = f"/v1/approvals/{approval_id}"
    headers = {"Idempotency-Key": "once"}
    first = await caller.post(address, json={"decision": "approve", "note": "go"}, headers=headers)
    assert first.status_code == 200
    assert first.json()["state"] == "approved"
    for more in ({"headers": headers}, {}):
        again = await caller.post(address, json={"decision": "approve", "note": "go"}, **more)
        assert (again.status_code, again.json()) == (200, first.json())
    other = await caller.post(address, json={"decision": "reject"})
    assert (other.status_code, other.json()["code"]) == (409, "approval_decided")
    assert first.json()["decided_by"] in other.json()["detail"]
    assert (await types(caller, first.json()["task_id"])).count("approval.decided") == 1


async def test_a_decision_that_cannot_be_read(api: RunningApi, caller: Caller) -> None:
    (approval_id,) = await asking(api, caller, "git push")
    address = f"/v1/approvals/{approval_id}"
    assert fields_of(await caller.post(address, json={"decision": "maybe"})) == {"decision"}
    assert fields_of(await caller.post(address, json={"decision": "reject", "edited": {}})) == {"edited"}
    assert fields_of(await caller.post(address, json={"decision": "approve", "edited": ["a"]})) == {"edited"}
    assert fields_of(await caller.post(address, json={"decision": "approve", "note": " "})) == {"note"}
    assert fields_of(await caller.post(address, json={"decision": "approve", "edited": {}})) == {"edited"}
    assert fields_of(await caller.post(address, json={"decision": "approve", "edited": {"cmd": "ls"}})) == {"edited"}
    wrong = {"decision": "approve", "edited": {"command": ["ls"]}}
    assert fields_of(await caller.post(address, json=wrong)) == {"edited.command"}
    assert (await caller.post("/v1/approvals/apr_nonsense", json={"decision": "approve"})).status_code == 404
    assert (await caller.get(address)).json()["state"] == "pending"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("never", {}),
        ({}, {}),
        ({"rules": [{"tool": "shell", "require": "never"}]}, {}),
        (
            "always",
            {
                "plan": "always",
                "tools": "always",
                "rules": [],
                "expires_after_s": 86400,
                "on_expiry": "reject",
            },
        ),
        (
            {"tools": "on_risk", "rules": [{"tool": "shell", "pattern": "pytest*", "require": "never"}]},
            {
                "plan": "never",
                "tools": "on_risk",
                "rules": [{"tool": "shell", "pattern": "pytest*", "require": "never"}],
                "expires_after_s": 86400,
                "on_expiry": "reject",
            },
        ),
        (
            {"plan": "always", "expires_after_s": 60, "escalate_after_s": 30, "on_expiry": "approve"},
            {
                "plan": "always",
                "tools": "never",
                "rules": [],
                "expires_after_s": 60,
                "escalate_after_s": 30,
                "on_expiry": "approve",
            },
        ),
    ],
)
async def test_a_policy_is_stored_in_full(caller: Caller, given: Any, stored: dict[str, Any]) -> None:
    assert (await caller.submit(approval_policy=given))["approval_policy"] == stored


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sometimes", "'never', 'on_risk' or 'always'"),
        ({"tools": "sometimes"}, "'never', 'on_risk' or 'always'"),
        ({"plan": "on_risk"}, "'never' or 'always'"),
        ({"tool": "always"}, "There is no such field"),
        ({"expires_after_s": 0}, "greater than or equal to 1"),
        ({"expires_after_s": 60, "escalate_after_s": 60}, "must be less than expires_after_s"),
        ({"rules": [{"tool": "submit_plan", "require": "always"}]}, "plan: always"),
        ({"rules": [{"tool": "she ll", "require": "always"}]}, "name of a tool"),
        ({"rules": [{"tool": "shell", "pattern": " ", "require": "always"}]}, "blank"),
        ({"rules": [{"tool": "shell", "pattern": "x" * 501, "require": "always"}]}, "at most 500"),
        ({"rules": [{"tool": "shell"}]}, "require"),
    ],
)
async def test_a_policy_that_cannot_be_meant(caller: Caller, given: Any, said: str) -> None:
    response = await caller.post("/v1/tasks", json={"instruction": "Do it.", "approval_policy": given})
    assert response.status_code == 422
    assert said in response.text
    assert not {field for field in fields_of(response) if "word" in field or "object" in field}


async def test_a_plan_is_approved_with_an_edit(api: RunningApi, caller: Caller) -> None:
    task_id, approval_id = await planned(api, caller)
    edited = {"subtasks": [SUBTASK | {"instructions": "Do it well."}], "acceptance": ["make test"]}
    for _ in range(2):
        response = await caller.put(f"/v1/tasks/{task_id}/plan", json=edited)
        assert response.status_code == 200, response.text
        plan = response.json()
        assert (plan["revision"], plan["acceptance"]) == (2, ["make test"])
    assert plan["subtasks"][0]["instructions"] == "Do it well."
    assert [each["author"] is None for each in plan["revisions"]] == [True, False]
    # The Planner's own stays as it was.
    first = (await caller.get(f"/v1/tasks/{task_id}/plan", params={"revision": 1})).json()
    assert first["subtasks"][0]["instructions"] == "Do it."
    stale = await caller.post(f"/v1/tasks/{task_id}/plan/approve", json={"revision": 1})
    assert (stale.status_code, stale.json()["code"]) == (409, "plan_changed")
    for _ in range(2):
        approved = await caller.post(f"/v1/tasks/{task_id}/plan/approve", json={"note": "go", "revision": 2})
        assert approved.status_code == 200
        assert approved.json()["id"] == approval_id
        assert approved.json()["subject"] == {"revision": 2, "proposed": 1}
    late = await caller.put(f"/v1/tasks/{task_id}/plan", json=edited)
    assert (late.status_code, late.json()["code"]) == (409, "plan_not_waiting")
    other = await caller.post(f"/v1/tasks/{task_id}/plan/reject", json={"note": "no"})
    assert (other.status_code, other.json()["code"]) == (409, "approval_decided")
    assert (await types(caller, task_id))[1:] == [
        "approval.requested",
        "plan.edited",
        "plan.approved",
        "approval.decided",
    ]


async def test_a_plan_is_decided_in_the_inbox_too(api: RunningApi, caller: Caller) -> None:
    task_id, approval_id = await planned(api, caller)
    address = f"/v1/approvals/{approval_id}"
    broken = {"subtasks": [SUBTASK, SUBTASK], "acceptance": []}
    response = await caller.post(address, json={"decision": "approve", "edited": broken})
    assert fields_of(response) == {"subtasks[1].id"}
    response = await caller.post(address, json={"decision": "approve", "edited": {"subtasks": [{"id": "S 1"}]}})
    assert "edited.subtasks[0].id" in fields_of(response)
    edited = {"subtasks": [SUBTASK | {"id": "s2"}], "acceptance": []}
    response = await caller.post(address, json={"decision": "approve", "edited": edited})
    assert response.status_code == 200
    assert response.json()["subject"]["revision"] == 2
    plan = (await caller.get(f"/v1/tasks/{task_id}/plan")).json()
    assert [each["id"] for each in plan["subtasks"]] == ["s2"]
    assert (await types(caller, task_id))[-3:] == ["plan.edited", "plan.approved", "approval.decided"]


async def test_a_plan_is_rejected_with_its_reason(api: RunningApi, caller: Caller) -> None:
    task_id, _ = await planned(api, caller)
    assert fields_of(await caller.post(f"/v1/tasks/{task_id}/plan/reject", json={})) == {"note"}
    rejected = await caller.post(f"/v1/tasks/{task_id}/plan/reject", json={"note": "Too large."})
    assert (rejected.status_code, rejected.json()["state"], rejected.json()["note"]) == (200, "rejected", "Too large.")
    assert (await types(caller, task_id))[-2:] == ["plan.rejected", "approval.decided"]


async def test_no_plan_waits(api: RunningApi, caller: Caller) -> None:
    task_id = await make_task(api.database, caller.project_id, state="running")
    edited = {"subtasks": [SUBTASK], "acceptance": []}
    for response in (
        await caller.put(f"/v1/tasks/{task_id}/plan", json=edited),
        await caller.post(f"/v1/tasks/{task_id}/plan/approve"),
        await caller.post(f"/v1/tasks/{task_id}/plan/reject", json={"note": "no"}),
    ):
        assert (response.status_code, response.json()["code"]) == (409, "plan_not_waiting")
    async with api.caller() as stranger:
        assert (await stranger.post(f"/v1/tasks/{task_id}/plan/approve")).status_code == 404


@pytest.mark.parametrize(
    ("plan", "fields"),
    [
        ({"subtasks": []}, {"subtasks"}),
        ({"subtasks": [SUBTASK | {"id": "Not valid"}]}, {"subtasks[0].id"}),
        ({"subtasks": [SUBTASK | {"title": ""}]}, {"subtasks[0].title"}),
        ({"subtasks": [SUBTASK | {"depends_on": ["s9"]}]}, {"subtasks[0].depends_on"}),
        ({"subtasks": [SUBTASK | {"depends_on": ["s1"]}]}, {"subtasks[0].depends_on"}),
        ({"subtasks": [SUBTASK | {"acceptance": [" "]}]}, {"subtasks[0].acceptance[0]"}),
        (
            {"subtasks": [SUBTASK | {"depends_on": ["s2"]}, SUBTASK | {"id": "s2", "depends_on": ["s1"]}]},
            {"subtasks"},
        ),
        ({"subtasks": [SUBTASK], "steps": []}, {"steps"}),
    ],
)
async def test_a_plan_that_cannot_be_carried_out(
    api: RunningApi, caller: Caller, plan: dict[str, Any], fields: set[str]
) -> None:
    task_id, _ = await planned(api, caller)
    assert fields_of(await caller.put(f"/v1/tasks/{task_id}/plan", json=plan)) == fields
    assert (await caller.get(f"/v1/tasks/{task_id}/plan")).json()["revision"] == 1


async def test_edits_and_decisions_at_once_end_in_one_plan(api: RunningApi, caller: Caller) -> None:
    task_id, approval_id = await planned(api, caller)

    def edit(number: int) -> Any:
        plan = {"subtasks": [SUBTASK | {"title": f"Version {number}"}], "acceptance": []}
        return caller.put(f"/v1/tasks/{task_id}/plan", json=plan)

    responses = await asyncio.gather(
        *(edit(number) for number in range(8)), caller.post(f"/v1/tasks/{task_id}/plan/approve")
    )
    assert responses[-1].status_code == 200
    assert {response.status_code for response in responses} <= {200, 409}
    revision = (await caller.get(f"/v1/approvals/{approval_id}")).json()["subject"]["revision"]
    task = (await caller.get(f"/v1/tasks/{task_id}")).json()
    plan = (await caller.get(f"/v1/tasks/{task_id}/plan")).json()
    assert task["plan_revision"] == revision == plan["revision"]
    assert revision == 1 + sum(response.status_code == 200 for response in responses[:-1])
    assert (await types(caller, task_id))[-2:] == ["plan.approved", "approval.decided"]


async def test_what_waits_is_measured(api: RunningApi, caller: Caller) -> None:
    def pending(page: str) -> float:
        (line,) = [
            each for each in page.splitlines() if each.startswith('journeyman_approvals_pending{kind="tool_call"')
        ]
        return float(line.split()[-1])

    before = pending((await caller.get("/metrics")).text)
    ids = await asking(api, caller, "a", "b")
    assert pending((await caller.get("/metrics")).text) == before + 2
    await caller.post(f"/v1/approvals/{ids[0]}", json={"decision": "reject"})
    text = (await caller.get("/metrics")).text
    assert pending(text) == before + 1
    assert 'journeyman_approvals_total{kind="tool_call",outcome="rejected"}' in text


async def test_another_projects_approval_cannot_be_decided_under_its_task(api: RunningApi, caller: Caller) -> None:
    _, approval_id = await planned(api, caller)
    async with api.caller() as stranger:
        response = await stranger.post(f"/v1/approvals/{approval_id}", json={"decision": "approve"})
        assert response.status_code == 404
    async with api.database.transaction() as session:
        assert (await session.get_one(Approval, approval_id)).state == "pending"
