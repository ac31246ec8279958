"""``/v1/memory``: people look at, trace, correct and remove what agents know."""

import asyncio
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.settings import Settings
from journeyman.platform.memory.models import Kind, Memory
from journeyman.platform.memory.service import Learner, learn
from journeyman.platform.tasks.models import Task
from support.api import Caller, RunningApi, fields_of
from support.rows import make_task

TESTS = "Run the tests with `make test`; they need PostgreSQL."


async def learnt(
    database: Database, project_id: str, text: str, kind: Kind = "fact", task_id: str | None = None
) -> str:
    """What a task of the project remembers; returns its id."""
    task_id = task_id or await make_task(database, project_id)
    async with database.transaction() as session:
        return (await learn(session, Learner(project_id, task_id, new_id("request")), text, kind)).memory_id


async def add(caller: Caller, text: str, **fields: Any) -> dict[str, Any]:
    response = await caller.post("/v1/memory", json={"text": text, **fields})
    assert response.status_code == 201, response.text
    memory: dict[str, Any] = response.json()
    return memory


async def search(caller: Caller, query: str, **fields: Any) -> dict[str, Any]:
    response = await caller.post("/v1/memory/search", json={"query": query, **fields})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def until_found(caller: Caller, query: str, ids: list[str]) -> dict[str, Any]:
    """Search until the API's own sweep has let exactly these be found, in this order."""
    async with asyncio.timeout(30):
        while True:
            found = await search(caller, query)
            if [memory["id"] for memory in found["data"]] == ids:
                return found
            await asyncio.sleep(0.1)


async def read(caller: Caller, memory_id: str) -> dict[str, Any]:
    response = await caller.get(f"/v1/memory/{memory_id}")
    assert response.status_code == 200, response.text
    memory: dict[str, Any] = response.json()
    return memory


async def test_what_a_person_adds_is_found_without_a_further_write(caller: Caller) -> None:
    memory = await add(caller, TESTS, kind="command")
    assert memory["origin"] == "person"
    assert memory["state"] == "live"
    found = await until_found(caller, "How are the tests run?", [memory["id"]])
    assert found["degraded"] is False
    (hit,) = found["data"]
    assert hit["rank"] == pytest.approx(hit["score"] + 0.02, abs=0.001)
    assert hit["indexed"] is True
    assert hit["uses"] == 0, "a person's search is no use by an agent"
    (change,) = (await read(caller, memory["id"]))["history"]
    assert change["action"] == "added"
    assert change["api_key_id"].startswith("key_")


async def test_search_by_kind_and_limit(caller: Caller) -> None:
    fact = await add(caller, "The tests need PostgreSQL.")
    command = await add(caller, "`make test` runs the tests.", kind="command")
    async with asyncio.timeout(30):
        while len((await search(caller, "How are the tests run?"))["data"]) < 2:
            await asyncio.sleep(0.1)
    found = await search(caller, "How are the tests run?", kinds=["fact"])
    assert [memory["id"] for memory in found["data"]] == [fact["id"]]
    found = await search(caller, "How are the tests run?", kinds=["command", "lesson"])
    assert [memory["id"] for memory in found["data"]] == [command["id"]]
    assert len((await search(caller, "How are the tests run?", limit=1))["data"]) == 1


async def test_a_memory_is_traced_to_its_event(caller: Caller, database: Database) -> None:
    task_id = await make_task(database, caller.project_id)
    memory_id = await learnt(database, caller.project_id, TESTS, task_id=task_id)
    source = (await read(caller, memory_id))["source"]
    (event,) = (await caller.get(f"/v1/tasks/{task_id}/events")).json()["data"]
    assert source["task_id"] == task_id
    assert (source["event_id"], source["event_seq"]) == (event["id"], event["seq"])
    assert event["data"]["memory_id"] == memory_id


async def test_list_pages_and_filters(caller: Caller, database: Database) -> None:
    task_id = await make_task(database, caller.project_id)
    fact = await learnt(database, caller.project_id, "One.", task_id=task_id)
    lesson = await learnt(database, caller.project_id, "Two.", "lesson")
    person = (await add(caller, "Three."))["id"]
    gone = (await add(caller, "Four."))["id"]
    await caller.delete(f"/v1/memory/{gone}")

    async def ids(**query: Any) -> list[str]:
        response = await caller.get("/v1/memory", params=query)
        assert response.status_code == 200, response.text
        return [memory["id"] for memory in response.json()["data"]]

    assert await ids() == [person, lesson, fact]
    assert await ids(kind="lesson") == [lesson]
    assert await ids(kind=["lesson", "fact"], origin="agent") == [lesson, fact]
    assert await ids(task_id=task_id) == [fact]
    assert await ids(state="deleted") == [gone]
    assert await ids(state="all") == [gone, person, lesson, fact]
    first = (await caller.get("/v1/memory", params={"limit": 2})).json()
    rest = (await caller.get("/v1/memory", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [memory["id"] for memory in first["data"] + rest["data"]] == [person, lesson, fact]
    assert rest["next_cursor"] is None


async def test_the_same_request_again_makes_one_memory(caller: Caller) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await caller.post("/v1/memory", json={"text": TESTS}, headers=headers)
    again = await caller.post("/v1/memory", json={"text": TESTS}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["idempotent-replay"] == "true"
    assert first.headers["location"] == f"/v1/memory/{first.json()['id']}"
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["confirmations"] == 0
    other = await caller.post("/v1/memory", json={"text": "Another."}, headers=headers)
    assert other.status_code == 409
    assert other.json()["code"] == "idempotency_key_reused"


async def test_a_text_that_is_known_is_confirmed_and_vouched_for(caller: Caller, database: Database) -> None:
    known = await learnt(database, caller.project_id, TESTS)
    headers = {"Idempotency-Key": "k2"}
    response = await caller.post("/v1/memory", json={"text": TESTS.lower()}, headers=headers)
    assert response.status_code == 200
    memory = response.json()
    assert (memory["id"], memory["confirmations"], memory["text"]) == (known, 1, TESTS)
    assert memory["edited_at"] is not None
    again = await caller.post("/v1/memory", json={"text": TESTS.lower()}, headers=headers)
    assert (again.json()["id"], again.json()["confirmations"]) == (known, 1)


async def test_many_additions_of_one_text_at_once_make_one(caller: Caller, database: Database) -> None:
    responses = await asyncio.gather(*(caller.post("/v1/memory", json={"text": TESTS}) for _ in range(8)))
    assert sorted(response.status_code for response in responses) == [200] * 7 + [201]
    (memory,) = (await caller.get("/v1/memory")).json()["data"]
    assert memory["confirmations"] == 7


async def test_an_edit_is_found_and_outranks(caller: Caller, database: Database) -> None:
    memory = await learnt(database, caller.project_id, "The server listens on port 8080.")
    changed = await caller.patch(f"/v1/memory/{memory}", json={"text": "Money is kept in cents.", "kind": "lesson"})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["text"], changed.json()["kind"]) == ("Money is kept in cents.", "lesson")
    (hit,) = (await until_found(caller, "How is money stored?", [memory]))["data"]
    assert hit["rank"] > hit["score"] + 0.015
    assert (await search(caller, "Which port does the server listen on?"))["data"] == []
    (change,) = (await read(caller, memory))["history"]
    assert (change["action"], change["text"]) == ("edited", "The server listens on port 8080.")
    nothing = await caller.patch(f"/v1/memory/{memory}", json={})
    assert nothing.json()["updated_at"] == changed.json()["updated_at"]


async def test_an_edit_to_a_text_that_another_has_is_refused(caller: Caller) -> None:
    one, other = await add(caller, "One."), await add(caller, "Two.")
    response = await caller.patch(f"/v1/memory/{one['id']}", json={"text": "two."})
    assert response.status_code == 409
    assert response.json()["code"] == "memory_exists"
    assert response.json()["details"]["memory_id"] == other["id"]
    same = await caller.patch(f"/v1/memory/{one['id']}", json={"text": "ONE."})
    assert same.status_code == 200


async def test_a_correction_supersedes(caller: Caller, database: Database) -> None:
    wrong = await learnt(database, caller.project_id, "The server listens on port 8080.")
    right = await add(caller, "The server listens on port 8443.", supersedes=wrong)
    old = await read(caller, wrong)
    assert (old["state"], old["superseded_by"]) == ("superseded", right["id"])
    assert old["history"][-1]["action"] == "superseded"
    assert (await read(caller, right["id"]))["supersedes"] == [wrong]
    await until_found(caller, "Which port does the server listen on?", [right["id"]])
    refused = await caller.patch(f"/v1/memory/{wrong}", json={"text": "Any."})
    assert refused.json()["code"] == "memory_not_live"
    assert right["id"] in refused.json()["detail"]
    again = await caller.post("/v1/memory", json={"text": "Third.", "supersedes": wrong})
    assert fields_of(again) == {"supersedes"}


async def test_a_deleted_memory_is_never_found_again_and_what_it_replaced_is(
    caller: Caller, database: Database
) -> None:
    good = await learnt(database, caller.project_id, "The server listens on port 8443.")
    bad = await add(caller, "The server listens on port 80.", supersedes=good)
    await until_found(caller, "Which port does the server listen on?", [bad["id"]])
    gone = await caller.delete(f"/v1/memory/{bad['id']}")
    assert gone.json()["state"] == "deleted"
    assert bad["id"] not in [memory["id"] for memory in (await search(caller, "Which port is it?"))["data"]]
    await until_found(caller, "Which port does the server listen on?", [good])
    again = await caller.delete(f"/v1/memory/{bad['id']}")
    assert again.json()["deleted_at"] == gone.json()["deleted_at"]
    assert [change["action"] for change in (await read(caller, bad["id"]))["history"]] == ["added", "deleted"]
    assert (await read(caller, good))["history"][-1]["action"] == "restored"
    assert (await caller.patch(f"/v1/memory/{bad['id']}", json={"text": "x"})).status_code == 409


async def test_all_that_a_bad_task_wrote_goes_at_once(caller: Caller, database: Database) -> None:
    task_id = await make_task(database, caller.project_id)
    texts = ("Bad one.", "Bad two.", "Bad three.")
    bad = [await learnt(database, caller.project_id, text, task_id=task_id) for text in texts]
    other = await learnt(database, caller.project_id, "Good.")
    await caller.patch(f"/v1/memory/{bad[2]}", json={"text": "Good after all."})
    response = await caller.delete("/v1/memory", params={"task_id": task_id})
    assert response.json() == {"task_id": task_id, "deleted": sorted(bad[:2]), "kept": [bad[2]]}
    left = (await caller.get("/v1/memory")).json()["data"]
    assert {memory["id"] for memory in left} == {other, bad[2]}
    assert (await caller.delete("/v1/memory", params={"task_id": task_id})).json()["deleted"] == []
    async with asyncio.timeout(30):
        while await due(database, bad):
            await asyncio.sleep(0.1)


async def due(database: Database, ids: list[str]) -> bool:
    async with database.transaction() as session:
        rows = await session.scalars(sa.select(Memory.index_due_at).where(Memory.id.in_(ids)))
        return any(row is not None for row in rows)


@pytest.mark.parametrize("method", ["get", "patch", "delete"])
async def test_another_projects_memory_is_a_404(api: RunningApi, caller: Caller, method: str) -> None:
    memory = await add(caller, TESTS)
    arguments: dict[str, Any] = {"json": {"text": "Mine now."}} if method == "patch" else {}
    async with api.caller() as stranger:
        response = await getattr(stranger, method)(f"/v1/memory/{memory['id']}", **arguments)
        assert response.status_code == 404
        assert response.json()["code"] == "memory_not_found"
        theirs = await stranger.post("/v1/memory", json={"text": "Mine.", "supersedes": memory["id"]})
        assert theirs.status_code == 422
        assert (await search(stranger, "How are the tests run?"))["data"] == []
        assert (await stranger.get("/v1/memory", params={"state": "all"})).json()["data"] == []
    assert (await read(caller, memory["id"]))["text"] == TESTS


async def test_another_projects_task_is_a_404(api: RunningApi, caller: Caller, database: Database) -> None:
    task_id = await make_task(database, caller.project_id)
    memory = await learnt(database, caller.project_id, TESTS, task_id=task_id)
    async with api.caller() as stranger:
        assert (await stranger.delete("/v1/memory", params={"task_id": task_id})).status_code == 404
    assert (await read(caller, memory))["state"] == "live"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": " \n"}, "text"),
        ({"text": "a\x00b"}, "text"),
        ({"text": "x" * 4001}, "text"),
        ({"text": 5}, "text"),
        ({"text": "x", "kind": "rumour"}, "kind"),
        ({"text": "x", "colour": "red"}, "colour"),
        ({"text": "x", "supersedes": "mem_1"}, "supersedes"),
        ({"text": "x", "supersedes": new_id("memory")}, "supersedes"),
        ({"text": "The key is sk-live-0123456789abcdef."}, "text"),
        ({"text": "Log in with password=hunter22."}, "text"),
    ],
)
async def test_what_cannot_be_meant_is_refused(caller: Caller, body: dict[str, Any], field: str) -> None:
    response = await caller.post("/v1/memory", json=body)
    assert response.status_code == 422
    assert field in fields_of(response)
    assert "hunter22" not in response.text
    assert (await caller.get("/v1/memory")).json()["data"] == []


async def test_a_half_of_a_surrogate_pair_is_refused(caller: Caller) -> None:
    headers = {"Content-Type": "application/json"}
    response = await caller.post("/v1/memory", content=b'{"text": "\\ud800"}', headers=headers)
    assert fields_of(response) == {"text"}


async def test_an_edit_is_checked_like_an_addition(caller: Caller) -> None:
    memory = await add(caller, TESTS)
    response = await caller.patch(f"/v1/memory/{memory['id']}", json={"text": "token: ghp_abcdefghijklmnopqrstuvwx"})
    assert response.status_code == 422
    assert response.json()["code"] == "looks_like_a_secret"
    assert (await read(caller, memory["id"]))["text"] == TESTS


@pytest.mark.parametrize(
    "path", ["/v1/memory?kind=rumour", "/v1/memory?state=half", "/v1/memory?cursor=x", "/v1/memory?x=1"]
)
async def test_wrong_filters_are_refused(caller: Caller, path: str) -> None:
    assert (await caller.get(path)).status_code == 422


async def test_deleting_without_saying_what_is_refused(caller: Caller) -> None:
    response = await caller.delete("/v1/memory")
    assert response.status_code == 422
    assert fields_of(response) == {"task_id"}


@pytest.mark.parametrize(
    "body", [{}, {"query": " "}, {"query": "x", "limit": 0}, {"query": "x", "limit": 101}, {"query": "x" * 2001}]
)
async def test_wrong_searches_are_refused(caller: Caller, body: dict[str, Any]) -> None:
    assert (await caller.post("/v1/memory/search", json=body)).status_code == 422


async def test_without_the_embedder_search_says_that_it_is_degraded(api: RunningApi, caller: Caller) -> None:
    from support.api import free_port, running

    settings = api.resources[Settings].model_copy(update={"gateway_url": f"http://127.0.0.1:{free_port()}"})
    memory = await add(caller, TESTS)
    await until_found(caller, "How are the tests run?", [memory["id"]])
    async with running(settings) as other, other.caller(project_id=caller.project_id) as there:
        found = await search(there, "How are the tests run?")
        assert [hit["id"] for hit in found["data"]] == [memory["id"]], "found by its words"
        assert found["degraded"] is True
        assert (await read(there, memory["id"]))["text"] == TESTS
        page: httpx.Response = await there.get("/metrics")
        assert 'journeyman_memory_down{part="embedder"} 1.0' in page.text


async def test_a_doubtful_task_is_told_with_its_memories(caller: Caller, database: Database) -> None:
    task_id = await make_task(database, caller.project_id)
    memory = await learnt(database, caller.project_id, TESTS, task_id=task_id)
    async with database.transaction() as session:
        await session.execute(sa.update(Task).where(Task.id == task_id).values(state="failed"))
    assert (await read(caller, memory))["source"]["task_state"] == "failed"
    (hit,) = (await until_found(caller, "How are the tests run?", [memory]))["data"]
    assert hit["rank"] == pytest.approx(hit["score"] - 0.02, abs=0.001)
