"""Submitting: what is stored, what is refused, and one task for one idempotency key."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from journeyman.platform.events.models import Event
from journeyman.platform.idempotency.models import IdempotencyKey
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.settings import Settings
from journeyman.platform.outbox.models import OutboxEntry
from journeyman.platform.replay.catalog import ReplayCatalog
from journeyman.platform.tasks.models import Task
from journeyman.platform.uploads.models import Upload
from support.api import Caller, RunningApi, api_settings, fields_of, running


async def stored(database: Database, project_id: str) -> dict[str, int]:
    """How many rows a project has of each kind that a submit writes."""
    async with database.transaction() as session:
        return {
            model.__tablename__: await session.scalar(
                sa.select(sa.func.count()).select_from(model).where(model.project_id == project_id)
            )
            or 0
            for model in (Task, Event, OutboxEntry, IdempotencyKey)
        }


async def test_a_task_with_everything(caller: Caller, database: Database) -> None:
    body: dict[str, Any] = {
        "title": "Repair",
        "instruction": "Make the tests pass.\nAll of them. äöü 🚀",
        "workspace": {"source": "git", "url": "https://github.com/psf/requests.git", "ref": "v2.32.0"},
        "environment": {
            "toolset": "python",
            "setup": ["pip install -e ."],
            "checks": ["python -V"],
            "env": {"LANG": "C.UTF-8"},
            "network": {"egress": []},
            "resources": {"memory_mb": 512, "cpus": 1.5, "pids": 64, "disk_mb": 256},
        },
        "acceptance": ["pytest -q"],
        "agent_profile": "default",
        "model_tier": "fast",
        "models": {"reviewer": "other"},
        "budget": {"max_tokens": 100_000, "max_cost_usd": 1.5, "max_wall_s": 3600, "max_steps": 50},
        "webhooks": [],
        "metadata": {"team": "blue"},
    }
    response = await caller.post("/v1/tasks", json=body)
    assert response.status_code == 201
    task = response.json()
    assert response.headers["location"] == f"/v1/tasks/{task['id']}"
    assert task["state"] == "queued"
    assert task["last_seq"] == 1
    assert task["verified"] is None
    for name in ("title", "instruction", "workspace", "acceptance", "model_tier", "budget", "metadata", "models"):
        assert task[name] == body[name], name
    assert task["environment"]["resources"] == body["environment"]["resources"]
    assert (await caller.get(f"/v1/tasks/{task['id']}")).json()["instruction"] == body["instruction"]
    assert await stored(database, caller.project_id) == {"tasks": 1, "events": 1, "outbox": 1, "idempotency_keys": 0}
    async with database.transaction() as session:
        event = (await session.scalars(sa.select(Event).where(Event.task_id == task["id"]))).one()
        entry = (await session.scalars(sa.select(OutboxEntry).where(OutboxEntry.task_id == task["id"]))).one()
    assert (event.type, event.seq) == ("task.created", 1)
    assert entry.payload["task_id"] == task["id"]
    assert entry.payload["trace_context"]["traceparent"].startswith("00-")


async def test_the_task_joins_the_callers_trace(caller: Caller, database: Database) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    task = (await caller.post("/v1/tasks", json={"instruction": "x"}, headers=headers)).json()
    async with database.transaction() as session:
        row = await session.get_one(Task, task["id"])
    assert trace_id in row.trace_context["traceparent"]


async def test_title_comes_from_the_instruction(caller: Caller) -> None:
    assert (await caller.submit(instruction="\n\n  First   line \nsecond"))["title"] == "First line"
    long = (await caller.submit(instruction="word " * 100))["title"]
    assert len(long) <= 80
    assert long.endswith("…")
    assert (await caller.submit(instruction="\x1b\x07"))["title"] == "Untitled"


async def test_an_instruction_of_a_megabyte(caller: Caller) -> None:
    text = "x" * (1024 * 1024)
    task = await caller.submit(instruction=text)
    assert (await caller.get(f"/v1/tasks/{task['id']}")).json()["instruction"] == text


@pytest.mark.parametrize(
    "text",
    ["x" * (1024 * 1024 + 1), "é" * (512 * 1024 + 1), "", "  \n\t", "a\x00b"],
    ids=["1 MiB + 1", "as many bytes in half the characters", "empty", "blank", "NUL"],
)
async def test_instructions_that_are_refused(caller: Caller, database: Database, text: str) -> None:
    response = await caller.post("/v1/tasks", json={"instruction": text}, headers={"Idempotency-Key": "k"})
    assert response.status_code == 422
    assert fields_of(response) == {"instruction"}
    assert set((await stored(database, caller.project_id)).values()) == {0}


async def test_lone_surrogates_are_refused_where_they_are(caller: Caller) -> None:
    body = {"instruction": "a\ud800b", "metadata": {"k": "\udfff"}, "environment": {"env": {"A": "\ud800"}}}
    response = await caller.post(
        "/v1/tasks", content=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 422
    assert fields_of(response) == {"instruction", "metadata.k", "environment.env.A"}


async def test_escape_codes_survive(caller: Caller) -> None:
    text = "\x1b[31mred\x1b[0m \x07 \u202e \u2028 \ufeff"
    task = await caller.submit(instruction=text, acceptance=["printf '\\033[31m'"])
    assert task["instruction"] == text


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"title": "x" * 201}, "title"),
    ({"title": "a\nb"}, "title"),
    ({"title": " "}, "title"),
    ({"colour": "blue"}, "colour"),
    ({"workspace": {"source": "ftp"}}, "workspace"),
    ({"workspace": {"source": "none", "url": "https://x.example"}}, "workspace.url"),
    ({"workspace": {"source": "git"}}, "workspace.url"),
    ({"workspace": "https://x.example"}, "workspace"),
    ({"workspace": {"source": "archive", "upload_id": "upl_" + "0" * 32}}, "workspace.upload_id"),
    ({"workspace": {"source": "archive", "upload_id": "../../etc"}}, "workspace.upload_id"),
    *(
        ({"workspace": {"source": "git", "url": url}}, "workspace.url")
        for url in (
            "ssh://git@github.com/a/b",
            "git@github.com:a/b",
            "ext::sh -c touch% /tmp/x",
            "file:///etc",
            "/etc",
            "-upload-pack=x",
            "http://github.com/a/b",
            "https://user:password@github.com/a/b",
            "https://token@github.com/a/b",
            "https://",
            "https:///a",
            "https://github.com/a b",
            "https://github.com/a\nb",
            "https://localhost/a",
            "https://127.0.0.1/a",
            "https://[::1]/a",
            "https://10.0.0.1/a",
            "https://169.254.169.254/latest",
            "https://github.com:99999/a",
            "https://x.example/" + "a" * 2100,
        )
    ),
    *(
        ({"workspace": {"source": "git", "url": "https://x.example/r", "ref": ref}}, "workspace.ref")
        for ref in ("--upload-pack=x", "", "a..b", "a b", "a\x00b", "x.lock", "/a", "a/", "~1", "a" * 300)
    ),
    ({"environment": {"toolset": "windows"}}, "environment.toolset"),
    ({"environment": {"image": "ubuntu"}}, "environment.image"),
    ({"environment": {"setup": [""]}}, "environment.setup[0]"),
    ({"environment": {"checks": "true"}}, "environment.checks"),
    ({"environment": {"env": {"1A": "x"}}}, "environment.env.1A"),
    ({"environment": {"env": {"A B": "x"}}}, "environment.env.A B"),
    ({"environment": {"env": {"A": 1}}}, "environment.env.A"),
    ({"environment": {"env": {"A": "\x00"}}}, "environment.env.A"),
    ({"environment": {"secrets": ["TOKEN"]}}, "environment.secrets[0]"),
    ({"environment": {"network": {"egress": ["packages.example.org"]}}}, "environment.network.egress"),
    ({"environment": {"resources": {"memory_mb": 1}}}, "environment.resources.memory_mb"),
    ({"environment": {"resources": {"memory_mb": 10**9}}}, "environment.resources.memory_mb"),
    ({"environment": {"resources": {"disk_mb": 64 * 1024}}}, "environment.resources.disk_mb"),
    ({"environment": {"resources": {"cpus": 64}}}, "environment.resources.cpus"),
    ({"environment": {"resources": {"pids": 100_000}}}, "environment.resources.pids"),
    ({"environment": {"resources": {"cpus": 0}}}, "environment.resources.cpus"),
    ({"environment": {"resources": {"pids": "64"}}}, "environment.resources.pids"),
    ({"environment": {"resources": {"gpus": 1}}}, "environment.resources.gpus"),
    ({"acceptance": ["true"] * 21}, "acceptance"),
    ({"acceptance": ["x" * 8193]}, "acceptance[0]"),
    ({"acceptance": [" "]}, "acceptance[0]"),
    ({"acceptance": ["a\x00b"]}, "acceptance[0]"),
    ({"agent_profile": "other"}, "agent_profile"),
    ({"model_tier": "huge"}, "model_tier"),
    ({"models": {"janitor": "x"}}, "models.janitor"),
    ({"models": {"coder": ""}}, "models.coder"),
    ({"budget": {"max_tokens": 0}}, "budget.max_tokens"),
    ({"budget": {"max_tokens": 1.5}}, "budget.max_tokens"),
    ({"budget": {"max_tokens": True}}, "budget.max_tokens"),
    ({"budget": {"max_cost_usd": -1}}, "budget.max_cost_usd"),
    ({"budget": {"max_steps": 10**30}}, "budget.max_steps"),
    ({"budget": {"max_euro": 1}}, "budget.max_euro"),
    ({"approval_policy": "sometimes"}, "approval_policy"),
    ({"webhooks": ["https://x.example"]}, "webhooks"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"metadata": {"": "x"}}, "metadata."),
    ({"metadata": {str(number): "" for number in range(33)}}, "metadata"),
    ({"instruction": None}, "instruction"),
]


@pytest.mark.parametrize(
    ("body", "field"), REFUSED, ids=[f"{number}-{field}" for number, (_, field) in enumerate(REFUSED)]
)
async def test_refused_with_the_field_named(caller: Caller, body: dict[str, Any], field: str) -> None:
    response = await caller.post("/v1/tasks", json={"instruction": "x", **body})
    assert response.status_code == 422, response.text
    assert fields_of(response) == {field}, response.text
    assert response.json()["detail"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
async def test_numbers_that_are_none(caller: Caller, value: str) -> None:
    body = b'{"instruction": "x", "budget": {"max_cost_usd": ' + value.encode() + b"}}"
    response = await caller.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
    assert response.status_code in {400, 422}, response.text


async def test_an_upload_of_another_project_is_unknown(api: RunningApi, caller: Caller, database: Database) -> None:
    upload_id = new_id("upload")
    async with database.transaction() as session:
        session.add(
            Upload(id=upload_id, project_id=caller.project_id, name="a", size=1, digest="0", snapshot="0", files=1)
        )
    body = {"instruction": "x", "workspace": {"source": "archive", "upload_id": upload_id}}
    async with api.caller() as other:
        response = await other.post("/v1/tasks", json=body)
    assert fields_of(response) == {"workspace.upload_id"}
    assert (await caller.post("/v1/tasks", json=body)).status_code == 201


async def test_http_and_private_hosts_where_the_operator_allows_them(clean_settings: Settings, tmp_path: Path) -> None:
    settings = api_settings(clean_settings, tmp_path, git_allow_own_machine=True)
    async with running(settings) as api, api.caller() as caller:
        await caller.submit(workspace={"source": "git", "url": "http://127.0.0.1:8080/r.git"})
        response = await caller.post(
            "/v1/tasks", json={"instruction": "x", "workspace": {"source": "git", "url": "file:///etc"}}
        )
        assert fields_of(response) == {"workspace.url"}


async def test_without_a_model_only_scripted_tasks_are_taken(clean_settings: Settings, tmp_path: Path) -> None:
    settings = api_settings(clean_settings, tmp_path, model_base_url=None)
    async with running(settings) as api, api.caller() as caller:
        assert (await caller.get("/v1/me")).json()["engine"] == "replay"
        response = await caller.post("/v1/tasks", json={"instruction": "Something nobody scripted."})
        assert response.status_code == 422
        assert response.json()["code"] == "no_model_configured"
        assert "JOURNEYMAN_MODEL_BASE_URL" in response.json()["detail"]
        scripts = api.resources[ReplayCatalog].scripts()
        assert scripts, "the demo tasks are bundled"


async def test_a_dollar_limit_without_a_price_is_warned_of(caller: Caller) -> None:
    task = await caller.submit(budget={"max_cost_usd": 2})
    [warning] = task["warnings"]
    assert warning["code"] == "dollar_limit_without_price"
    assert "'default'" in warning["message"]
    assert "JOURNEYMAN_MODEL_PRICES" in warning["message"]
    assert (await caller.get(f"/v1/tasks/{task['id']}")).json()["warnings"] == [warning]
    for body in (
        {"budget": {"max_tokens": 5}},
        {"budget": {"max_cost_usd": 2}, "models": dict.fromkeys(("planner", "coder", "reviewer"), "gpt-4o-mini")},
    ):
        assert (await caller.submit(**body))["warnings"] == []
    [partly] = (await caller.submit(budget={"max_cost_usd": 2}, models={"coder": "gpt-4o"}, model_tier="fast"))[
        "warnings"
    ]
    assert "'default'" in partly["message"]
    assert "gpt-4o" not in partly["message"]
    raised = await caller.patch(f"/v1/tasks/{task['id']}/budget", json={"max_cost_usd": None})
    assert raised.json()["warnings"] == []
    path = f"/v1/projects/{caller.project_id}/budget"
    assert (await caller.patch(path, json={"max_cost_usd": 50})).json()["warnings"] == [warning]
    assert (await caller.patch(path, json={"max_cost_usd": None})).json()["warnings"] == []
    cancelled = await caller.submit(budget={"max_cost_usd": 2})
    await caller.post(f"/v1/tasks/{cancelled['id']}/cancel")
    assert (await caller.get(f"/v1/tasks/{cancelled['id']}")).json()["warnings"] == []


async def test_a_platform_that_refuses_models_without_a_price_says_so(clean_settings: Settings, tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"models": [{"match": "own-*", "input": "1", "output": "2"}]}')
    strict = {"model_refuse_unpriced": True, "model_standard": "own-large", "model_prices": prices}
    async with running(api_settings(clean_settings, tmp_path, **strict)) as api, api.caller() as caller:
        assert (await caller.submit(budget={"max_cost_usd": 2}))["warnings"] == []
        [warning] = (await caller.submit(budget={"max_cost_usd": 2}, model_tier="fast"))["warnings"]
    assert "pauses what has a limit in dollars" in warning["message"]


async def submit(caller: Caller, key: str, body: dict[str, Any]) -> httpx.Response:
    return await caller.post("/v1/tasks", json=body, headers={"Idempotency-Key": key})


async def test_the_same_key_and_body_give_the_first_task(caller: Caller, database: Database) -> None:
    first = await submit(caller, "key-1", {"instruction": "x", "metadata": {"a": "1", "b": "2"}})
    again = await submit(caller, "key-1", {"metadata": {"b": "2", "a": "1"}, "instruction": "x"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert "idempotent-replay" not in first.headers
    assert again.headers["idempotent-replay"] == "true"
    assert again.json() == first.json()
    assert (await stored(database, caller.project_id))["tasks"] == 1


async def test_the_same_key_with_another_body_is_a_conflict(caller: Caller, database: Database) -> None:
    first = await submit(caller, "key-1", {"instruction": "x"})
    other = await submit(caller, "key-1", {"instruction": "y"})
    assert other.status_code == 409
    assert other.json()["code"] == "idempotency_key_reused"
    assert other.json()["details"]["subject_id"] == first.json()["id"]
    assert (await stored(database, caller.project_id))["tasks"] == 1


async def test_a_key_of_another_project_is_another_key(api: RunningApi, caller: Caller) -> None:
    first = await submit(caller, "shared", {"instruction": "x"})
    async with api.caller() as other:
        second = await submit(other, "shared", {"instruction": "y"})
    assert (first.status_code, second.status_code) == (201, 201)


async def test_a_refused_submit_does_not_use_up_its_key(caller: Caller) -> None:
    refused = await submit(caller, "key", {"instruction": "x", "environment": {"secrets": ["A"]}})
    assert refused.status_code == 422
    assert (await submit(caller, "key", {"instruction": "x"})).status_code == 201


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "tab\t"])
async def test_unfit_keys(caller: Caller, key: str) -> None:
    response = await submit(caller, key, {"instruction": "x"})
    assert response.status_code == 422
    assert fields_of(response) == {"Idempotency-Key"}


async def test_duplicates_at_the_same_time_make_one_task(caller: Caller, database: Database) -> None:
    responses = await asyncio.gather(*(submit(caller, "rush", {"instruction": "x"}) for _ in range(20)))
    assert sorted(response.status_code for response in responses) == [200] * 19 + [201]
    assert len({response.json()["id"] for response in responses}) == 1
    assert await stored(database, caller.project_id) == {"tasks": 1, "events": 1, "outbox": 1, "idempotency_keys": 1}
