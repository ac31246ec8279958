"""Listing and reading."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from journeyman.platform.kit.database import Database
from journeyman.platform.tasks.models import Task
from support.api import Caller, RunningApi, fields_of


async def test_pages_hold_every_task_once_newest_first(caller: Caller) -> None:
    made = [(await caller.submit(instruction=f"task {number}"))["id"] for number in range(7)]
    seen: list[str] = []
    cursor = None
    for _ in range(4):
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await caller.get("/v1/tasks", params=query)).json()
        seen += [task["id"] for task in page["data"]]
        cursor = page["next_cursor"]
        # A task that comes in between does not move the pages.
        if len(seen) == 2:
            await caller.submit(instruction="late")
        if cursor is None:
            break
    assert seen == made[::-1]
    assert "instruction" not in page["data"][0]


async def test_tasks_of_the_same_moment_are_not_lost_between_pages(caller: Caller, database: Database) -> None:
    made = {(await caller.submit())["id"] for _ in range(5)}
    async with database.transaction() as session:
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        await session.execute(sa.update(Task).where(Task.project_id == caller.project_id).values(created_at=moment))
    seen = []
    query: dict[str, str | int] = {"limit": 2}
    while True:
        page = (await caller.get("/v1/tasks", params=query)).json()
        seen += [task["id"] for task in page["data"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert len(seen) == 5
    assert set(seen) == made


async def test_filters(caller: Caller) -> None:
    blue = await caller.submit(metadata={"team": "blue", "run": "1"})
    red = await caller.submit(metadata={"team": "red", "odd=name": "a=b"})
    await caller.post(f"/v1/tasks/{red['id']}/cancel")

    async def ids(**query: object) -> list[str]:
        response = await caller.get("/v1/tasks", params=query)  # type: ignore[arg-type]
        assert response.status_code == 200, response.text
        return [task["id"] for task in response.json()["data"]]

    assert await ids(state="queued") == [blue["id"]]
    assert await ids(state="cancelled") == [red["id"]]
    assert await ids(state=["queued", "cancelled"]) == [red["id"], blue["id"]]
    assert await ids(metadata="team=blue") == [blue["id"]]
    assert await ids(metadata=["team=blue", "run=2"]) == []
    moment = datetime.now(UTC)
    assert await ids(created_before=moment.isoformat()) == [red["id"], blue["id"]]
    assert await ids(created_after=moment.isoformat()) == []
    hour = timedelta(hours=1)
    both = {"created_after": (moment - hour).isoformat(), "created_before": (moment + hour).isoformat()}
    assert await ids(**both) == [red["id"], blue["id"]]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("state=nope", "state[0]"),
        ("metadata=noequals", "metadata[0]"),
        ("metadata=a%3D%00", "metadata[0]"),
        ("created_after=yesterday", "created_after"),
        ("created_after=2026-01-01T00:00:00", "created_after"),
        ("created_after=0001-01-01T00:00:00%2B14:00", "created_after"),
        ("cursor=nonsense", "cursor"),
        ("cursor=%00", "cursor"),
        ("cursor=W10", "cursor"),
        ("cursor=WyIyMDI2LTAxLTAxIiwxXQ", "cursor"),
        ("sort=name", "sort"),
    ],
)
async def test_bad_queries(caller: Caller, query: str, field: str) -> None:
    response = await caller.get(f"/v1/tasks?{query}")
    assert response.status_code == 422, response.text
    assert {name.split("[")[0] for name in fields_of(response)} == {field.split("[", maxsplit=1)[0]}


@pytest.mark.parametrize(
    "task_id", ["task_" + "0" * 32, "x", "task_%00", "..%2f..", "task_" + "0" * 5000, "%ff%fe", "'--"]
)
async def test_ids_that_name_nothing(caller: Caller, task_id: str) -> None:
    for path in ("", "/plan", "/events", "/checkpoints", "/files", "/diff", "/artifacts", "/receipts", "/usage"):
        response = await caller.get(f"/v1/tasks/{task_id}{path}")
        assert response.status_code == 404, (path, response.text)
        assert response.headers["content-type"] == "application/problem+json"
    assert (await caller.post(f"/v1/tasks/{task_id}/cancel")).status_code == 404
    assert (await caller.get(f"/v1/tasks/{task_id}/events/stream")).status_code == 404


async def test_another_projects_task_is_not_there(api: RunningApi, caller: Caller) -> None:
    task = await caller.submit()
    async with api.caller() as other:
        for path in (
            "",
            "/plan",
            "/events",
            "/events/stream",
            "/checkpoints",
            "/files",
            "/diff",
            "/artifacts",
            "/receipts",
            "/usage",
        ):
            assert (await other.get(f"/v1/tasks/{task['id']}{path}")).status_code == 404, path
        assert (await other.post(f"/v1/tasks/{task['id']}/cancel")).status_code == 404
        assert (await other.get("/v1/tasks")).json()["data"] == []
    assert (await caller.get(f"/v1/tasks/{task['id']}")).json()["state"] == "queued"
