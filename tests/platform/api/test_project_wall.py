"""No route shows or changes anything of another project: every operation of the OpenAPI file is tried with its ids.

A route that is added later is tried too. Until its path parameters, query parameters and body are in the tables below,
the test fails.
"""

import io
import json
import tarfile
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.tables import (
    approvals,
    artifacts,
    checkpoints,
    metadata,
    plans,
    tasks,
)
from support.api import Caller, RunningApi

MARK = "heron7731"
"""A word that only the first project's texts have."""

QUERY = {
    "task_id": "task_id",
    "checkpoint": "checkpoint_id",
    "from": "checkpoint_id",
    "to": "checkpoint_id",
    "path": "path",
}
"""Query parameters by the entry of :class:`Owned` that fills them."""

OTHER_QUERY = {
    "after", "created_after", "created_before", "cursor", "escalated", "kind", "limit", "metadata", "name", "open",
    "origin", "revision", "state", "types",
}  # fmt: skip
"""Query parameters that name nothing of a project."""


def bodies(owned: dict[str, str]) -> dict[tuple[str, str], Any]:
    """A body for each operation that takes one, valid in itself, with the ids of what the first project owns."""
    subtask = {"id": "a", "title": "a", "instructions": "a", "depends_on": [], "acceptance": []}
    plan = {"subtasks": [subtask], "acceptance": ["true"]}
    return {
        ("POST", "/v1/tasks"): {
            "instruction": "x",
            "workspace": {"source": "archive", "upload_id": owned["upload_id"]},
        },
        ("PATCH", "/v1/tasks/{task_id}/budget"): {"max_steps": 7},
        ("PUT", "/v1/tasks/{task_id}/plan"): plan,
        ("POST", "/v1/tasks/{task_id}/plan/approve"): {},
        ("POST", "/v1/tasks/{task_id}/plan/reject"): {"note": "x"},
        ("POST", "/v1/approvals/{approval_id}"): {"decision": "approve"},
        ("POST", "/v1/tasks/{task_id}/messages"): {"text": "x", "mode": "queue"},
        ("POST", "/v1/tasks/{task_id}/rewind"): {"checkpoint_id": owned["checkpoint_id"]},
        ("POST", "/v1/tasks/{task_id}/fork"): {"checkpoint_id": owned["checkpoint_id"]},
        ("PATCH", "/v1/projects/{project_id}/budget"): {"max_steps": 7},
        ("POST", "/v1/memory"): {"text": "The build needs ninja.", "supersedes": owned["memory_id"]},
        ("POST", "/v1/memory/search"): {"query": MARK},
        ("PATCH", "/v1/memory/settings"): {"write": False},
        ("PATCH", "/v1/memory/{memory_id}"): {"text": "Something else."},
        ("POST", "/v1/uploads"): archive("theirs.txt"),
        ("POST", "/v1/projects"): {"name": "x"},
        ("POST", "/v1/api-keys"): {"name": "x", "role": "admin"},
    }


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    parameters: list[dict[str, Any]]
    takes_body: bool

    @property
    def names_a_row(self) -> bool:
        return "{" in self.path


def operations(document: dict[str, Any]) -> list[Operation]:
    """Every operation; those that take something away last."""
    order = ["get", "post", "put", "patch", "delete"]
    found = [
        Operation(method.upper(), path, entry.get("parameters", []), "requestBody" in entry)
        for path, entries in document["paths"].items()
        for method, entry in entries.items()
    ]
    return sorted(found, key=lambda each: order.index(each.method.lower()))


def archive(name: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return packed.getvalue()


async def send(client: httpx.AsyncClient, operation: Operation, owned: dict[str, str]) -> tuple[httpx.Response, str]:
    """Try the operation with all the ids it takes. Returns the response and what was sent."""
    path = operation.path.format(**owned)
    query = {}
    for parameter in operation.parameters:
        if parameter["in"] == "query":
            name = parameter["name"]
            assert name in QUERY or name in OTHER_QUERY, f"{operation}: say what {name} names"
            if name in QUERY:
                query[name] = owned[QUERY[name]]
    content: bytes | None = None
    headers = {"Idempotency-Key": "shared"}
    if operation.takes_body:
        body = bodies(owned)[(operation.method, operation.path)]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers["Content-Type"] = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    response = await client.request(operation.method, path, params=query, content=content, headers=headers)
    return response, f"{path} {query} {content!r}"


async def rows_of(database: Database, owned: dict[str, str]) -> dict[str, Any]:
    """All rows of the project and of its task, without what the platform itself goes on with (deliveries, indexing)."""
    found = {}
    async with database.transaction() as session:
        for table in metadata.sorted_tables:
            columns = [column for column in table.c if column.name not in {"index_due_at", "indexed_at"}]
            if table.name == "projects":
                scope = table.c.id == owned["project_id"]
            elif "project_id" in table.c:
                scope = table.c.project_id == owned["project_id"]
            elif "task_id" in table.c:
                scope = table.c.task_id == owned["task_id"]
            else:
                continue
            if table.name != "outbox":
                rows = await session.execute(sa.select(*columns).where(scope))
                found[table.name] = sorted(str(row) for row in rows)
    return found


async def own(database: Database, first: Caller) -> dict[str, str]:
    """Give the first project one of everything; returns the ids by the names that routes have for them."""
    upload = (await first.post("/v1/uploads", params={"name": MARK}, content=archive(f"{MARK}.txt"))).json()
    response = await first.post(
        "/v1/tasks", json={"instruction": f"About {MARK}."}, headers={"Idempotency-Key": "shared"}
    )
    task = response.json()
    memory = (await first.post("/v1/memory", json={"text": f"The {MARK} needs care."})).json()
    key = (await first.post("/v1/api-keys", json={"name": MARK})).json()
    owned = {
        "project_id": first.project_id,
        "task_id": task["id"],
        "upload_id": upload["id"],
        "memory_id": memory["id"],
        "key_id": key["id"],
        "checkpoint_id": new_id("checkpoint"),
        "artifact_id": new_id("artifact"),
        "approval_id": new_id("approval"),
        "path": f"{MARK}.txt",
    }
    common = {"project_id": first.project_id, "task_id": task["id"]}
    async with database.transaction() as session:
        uploaded = await session.execute(
            sa.select(metadata.tables["uploads"].c.snapshot).where(metadata.tables["uploads"].c.id == upload["id"])
        )
        snapshot = uploaded.scalar_one()
        (await session.get_one(tasks.Task, task["id"])).plan_revision = 1
        session.add(
            plans.Plan(
                **common, id=new_id("plan"), revision=1, subtasks=[], acceptance=[MARK], reason=MARK, author=None
            )
        )
        session.add(
            checkpoints.Checkpoint(
                **common,
                id=owned["checkpoint_id"],
                event_seq=1,
                thread_id=None,
                thread_cursors={},
                thread_state={},
                plan_revision=0,
                snapshot=snapshot,
                head_snapshot=None,
                epoch=0,
                submitted=False,
                budget={},
                step_key=f"{task['id']}:wall",
            )
        )
        session.add(
            artifacts.Artifact(
                **common,
                id=owned["artifact_id"],
                kind="file",
                name=MARK,
                media_type="text/plain",
                size=0,
                digest="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            )
        )
        session.add(
            approvals.Approval(
                **common,
                id=owned["approval_id"],
                kind="plan",
                subject={"revision": 1, "mark": MARK},
                thread_id=None,
                subtask_id=None,
                step_key=f"{task['id']}:wall",
                state="pending",
                note=None,
                edited=None,
                decided_by=None,
                on_expiry="reject",
                requested_at=now(),
                expires_at=None,
                escalate_at=None,
                escalated_at=None,
                decided_at=None,
            )
        )
    return owned


async def project_of(operator: Caller, name: str) -> Caller:
    """A client with the admin key of a new project in the operator's organization."""
    made = (await operator.post("/v1/projects", json={"name": name})).json()
    return Caller(made["id"], made["api_key"]["key"], base_url=operator.base_url, transport=operator._transport)


@pytest.mark.parametrize("role", ["admin", "member"])
async def test_a_key_has_no_say_beyond_its_project(api: RunningApi, operator: Caller, role: str) -> None:
    first, second = await project_of(operator, MARK), await project_of(operator, "second")
    owned = await own(api.database, first)
    made = (await second.post("/v1/api-keys", json={"name": "x", "role": role})).json()
    second.headers["Authorization"] = f"Bearer {made['key']}"
    before = await rows_of(api.database, owned)
    for operation in operations(api.app.openapi()):
        response, sent = await send(second, operation, owned)
        shown = (operation, response.status_code, response.text)
        assert response.status_code < 500, shown
        if operation.names_a_row:
            assert response.status_code == 404 or (role == "member" and response.status_code == 403), shown
        elif operation.takes_body and any(each in sent for each in owned.values()):
            assert response.status_code in {403, 404, 422}, shown
        secret = [each for each in (MARK, *owned.values()) if each not in sent]
        assert not [each for each in secret if each in response.text], shown
    assert await rows_of(api.database, owned) == before

    # The same requests find something with the project's own key: none of the answers above was a mistake of the request.
    async with api.database.transaction() as session:
        await session.execute(sa.update(tasks.Task).where(tasks.Task.id == owned["task_id"]).values(state="cancelled"))
    for operation in operations(api.app.openapi()):
        live = operation.path.endswith("/stream")  # does not end, and finds its task as the list of events does
        if (operation.names_a_row or operation.takes_body) and not live:
            response, _ = await send(first, operation, owned)
            assert response.status_code not in {401, 404, 422}, (operation, response.text)


async def test_an_operator_key_sees_its_own_organization_only(api: RunningApi, operator: Caller) -> None:
    project = await project_of(operator, "second")
    budget = f"/v1/projects/{project.project_id}/budget"
    assert (await operator.patch(budget, json={"max_steps": 5})).status_code == 200
    assert (await operator.get(budget)).json()["max_steps"]["limit"] == 5
    assert (await project.get(budget)).json()["max_steps"]["limit"] == 5
    async with api.caller(role="operator") as stranger:
        assert (await stranger.get(budget)).status_code == 404
        assert (await stranger.patch(budget, json={"max_steps": 6})).status_code == 404
        assert project.project_id not in (await stranger.get("/v1/projects")).text
