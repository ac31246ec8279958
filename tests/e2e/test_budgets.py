"""Budgets of projects: every task of the project stops at a limit, and all go on behind it, once each."""

import asyncio

import httpx
import pytest

from support.platform import Platform
from support.scripts import shell, simple


@pytest.fixture
async def fresh(platform, full_stack):
    """A client in a project of its own, so that its limits stop nobody else."""
    response = await platform.client.post("/v1/projects", json={"name": "limited"})
    assert response.status_code == 201, response.text
    project = response.json()
    headers = {"Authorization": f"Bearer {project['api_key']['key']}"}
    async with httpx.AsyncClient(base_url=full_stack.settings.api_url, headers=headers, timeout=30) as client:
        client.headers["x-project"] = project["id"]
        yield Platform(client, platform.scripts)


async def set_limits(fresh, **limits):
    response = await fresh.client.patch(f"/v1/projects/{fresh.client.headers['x-project']}/budget", json=limits)
    assert response.status_code == 200, response.text
    return response.json()


def paused_for_budget(task):
    return task["paused_reason"] == "budget"


async def test_all_tasks_stop_at_the_projects_limit_and_go_on_once_it_is_raised(fresh):
    await set_limits(fresh, max_steps=8, period="day")
    steps = [shell(f"echo {number} >> log") for number in range(6)]
    tasks = [await fresh.submit(simple(*steps), acceptance=["test $(wc -l < log) = 6"]) for _ in range(3)]
    paused = await asyncio.gather(*(fresh.wait_for(task, paused_for_budget) for task in tasks))
    for task in paused:
        detail = task["paused_detail"]
        assert (detail["level"], detail["limit"], detail["of"], detail["period"]) == ("project", "max_steps", 8, "day")
        assert "project" in detail["detail"]
    usage = await fresh.get("/v1/usage")
    [budget] = usage["budgets"]
    assert (budget["level"], budget["max_steps"]["limit"], budget["max_steps"]["spent"]) == ("project", 8, 8)
    assert budget["resets_at"] is not None
    # Lowering resumes nobody; neither does a task's own limit, which is not what it waits for.
    assert (await set_limits(fresh, max_steps=7))["resumed"] == 0
    await fresh.client.patch(f"/v1/tasks/{tasks[0]}/budget", json={"max_steps": 1000})
    assert (await fresh.task(tasks[0]))["paused_reason"] == "budget"
    assert (await set_limits(fresh, max_steps=1000))["resumed"] == 3
    assert (await set_limits(fresh, max_steps=2000))["resumed"] == 0
    outcomes = await asyncio.gather(*(fresh.end(task) for task in tasks))
    for outcome in outcomes:
        assert outcome.task["state"] == "succeeded"
        [exhausted] = outcome.of("budget.exhausted")
        assert {"level": "project", "limit": "max_steps", "spent": 8, "of": 8}.items() <= exhausted["data"].items()
        assert [event["data"]["reason"] for event in outcome.of("task.resumed")] == ["budget"]
    warned = [event["data"] for outcome in outcomes for event in outcome.of("budget.warned")]
    assert [(event["level"], event["limit"], event["of"]) for event in warned] == [("project", "max_steps", 8)]


@pytest.mark.slow
async def test_wall_time_counts_work_and_not_waiting(fresh):
    task = await fresh.submit(
        simple(shell("sleep 3"), shell("echo done > log")), budget={"max_wall_s": 3}, acceptance=["test -f log"]
    )
    await fresh.wait_for(task, paused_for_budget)
    [at_pause] = [each for each in (await fresh.get(f"/v1/tasks/{task}/usage"))["budgets"] if each["level"] == "task"]
    assert at_pause["max_wall_s"]["spent"] >= 3
    await asyncio.sleep(1.2)  # while nothing is to happen
    [later] = [each for each in (await fresh.get(f"/v1/tasks/{task}/usage"))["budgets"] if each["level"] == "task"]
    assert later["max_wall_s"]["spent"] == at_pause["max_wall_s"]["spent"]
    await fresh.client.patch(f"/v1/tasks/{task}/budget", json={"max_wall_s": 600})
    outcome = await fresh.end(task)
    assert outcome.task["state"] == "succeeded"
    [exhausted] = outcome.of("budget.exhausted")
    assert (exhausted["data"]["level"], exhausted["data"]["limit"]) == ("task", "max_wall_s")
