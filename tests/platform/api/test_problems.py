"""Whatever goes wrong, the answer is one problem document."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from journeyman.platform.api.app import build_resources, create_app
from journeyman.platform.http.requests import MAX_BODY
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.settings import Settings
from support.api import Caller, RunningApi, api_settings, calling, fields_of, free_port, running, served
from support.proxy import Proxy


def problem(response: httpx.Response, status: int, code: str) -> dict[str, object]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, object] = response.json()
    assert document["status"] == status
    assert document["code"] == code
    assert document["type"] == f"urn:journeyman:problem:{code}"
    assert document["request_id"] == response.headers["x-request-id"]
    assert isinstance(document["retryable"], bool)
    assert document["title"]
    assert document["detail"]
    return document


async def test_unknown_address(caller: Caller) -> None:
    problem(await caller.get("/v1/nothing"), 404, "not_found")
    problem(await caller.get("/v1/tasks/"), 404, "not_found")


async def test_wrong_method_says_which_are_possible(caller: Caller) -> None:
    response = await caller.put("/v1/tasks")
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"]


@pytest.mark.parametrize(
    "body",
    [b'{"instruction": ', b"\xff\xfe", b"", b"nonsense", b"[" * 100_000],
    ids=["cut", "utf16", "empty", "word", "deep"],
)
async def test_malformed_json(caller: Caller, body: bytes) -> None:
    response = await caller.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
    assert response.status_code in {400, 422}
    problem(response, response.status_code, response.json()["code"])


MANY = b", ".join(b'"k%d": 1' % number for number in range(150_000))


@pytest.mark.parametrize(
    "body",
    [
        b"{" + MANY + b"}",
        b'{"budget": {' + MANY + b"}}",
        b'{"acceptance": [' + b"1," * 100_000 + b"1]}",
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b"[" * 65 + b"]" * 65,
        b"[" * 500_000,
    ],
    ids=["fields", "inner fields", "items", "nested objects", "nested lists", "never closed"],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/tasks"), ("PATCH", "/v1/tasks/task_1/budget")])
async def test_bodies_too_large_to_be_meant_cost_nothing(caller: Caller, method: str, path: str, body: bytes) -> None:
    response = await caller.request(method, path, content=body, headers={"content-type": "application/json"})
    problem(response, 422, "too_complex")


async def test_long_texts_may_hold_any_number_of_commas_and_brackets(caller: Caller) -> None:
    text = 'a, "b", [c], {d}\\' * 20_000
    response = await caller.post("/v1/tasks", json={"instruction": text})
    assert response.status_code == 201, response.text


async def test_huge_number_in_json(caller: Caller) -> None:
    body = b'{"instruction": "x", "budget": {"max_tokens": ' + b"9" * 6000 + b"}}"
    response = await caller.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
    assert response.status_code in {400, 422}


async def test_every_wrong_field_is_named(caller: Caller) -> None:
    response = await caller.post(
        "/v1/tasks",
        json={
            "instruction": 5,
            "acceptance": ["ok", ""],
            "unknown": 1,
            "workspace": {"source": "git", "url": "ssh://x/y"},
        },
    )
    problem(response, 422, "invalid_input")
    assert fields_of(response) == {"instruction", "acceptance[1]", "unknown", "workspace.url"}


async def test_request_id_of_the_caller_is_echoed(caller: Caller) -> None:
    response = await caller.get("/v1/nothing", headers={"X-Request-Id": "my-id-1"})
    assert response.headers["x-request-id"] == "my-id-1"
    assert response.json()["request_id"] == "my-id-1"


@pytest.mark.parametrize("given", ["", "with space", "a" * 200, "<script>"])
async def test_unfit_request_id_is_replaced(caller: Caller, given: str) -> None:
    response = await caller.get("/healthz", headers={"X-Request-Id": given})
    assert response.headers["x-request-id"].startswith("req_")


async def test_body_above_the_limit(caller: Caller) -> None:
    big = json.dumps({"instruction": "x" * MAX_BODY}).encode()
    problem(await caller.post("/v1/tasks", content=big), 413, "payload_too_large")


async def test_body_above_the_limit_without_a_declared_length(caller: Caller) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * (64 * 1024)

    response = await caller.post("/v1/tasks", content=chunks(), headers={"content-type": "application/json"})
    problem(response, 413, "payload_too_large")


async def test_body_above_the_limit_over_a_socket(clean_settings: Settings, database: Database) -> None:
    async with served(clean_settings) as api, calling(api.url, database) as caller:
        problem(await caller.post("/v1/tasks", content=b"x" * (MAX_BODY + 1)), 413, "payload_too_large")
        # The connection, or another one, goes on being usable.
        assert (await caller.get("/healthz")).status_code == 200


async def test_unexpected_error_tells_nothing_of_the_inside(api: RunningApi, caplog: pytest.LogCaptureFixture) -> None:
    async def explode() -> None:
        raise RuntimeError("secret-of-the-house")

    api.app.add_api_route("/explode", explode, include_in_schema=False)
    async with api.caller() as caller:
        response = await caller.get("/explode")
    document = problem(response, 500, "internal_error")
    assert "secret-of-the-house" not in response.text
    assert document["retryable"] is False


@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
async def test_a_request_that_gave_way_to_another_says_so(api: RunningApi, sqlstate: str) -> None:
    async def give_way() -> None:
        async with api.database.transaction() as session:
            raising = f"DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '{sqlstate}'; END $$"
            await session.execute(sa.text(raising))

    api.app.add_api_route("/give-way", give_way, include_in_schema=False)
    async with api.caller() as caller:
        response = await caller.get("/give-way")
    assert problem(response, 503, "gave_way")["retryable"] is True
    assert response.headers["retry-after"]


async def test_postgres_down_is_503_and_retryable(clean_settings: Settings) -> None:
    nowhere = clean_settings.model_copy(
        update={"database_url": f"postgresql+asyncpg://nobody@127.0.0.1:{free_port()}/none"}
    )
    app = create_app(nowhere)
    async with AsyncExitStack() as stack:
        app.state.resources = await build_resources(nowhere, stack)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as client:
            response = await client.get("/v1/tasks", headers={"Authorization": "Bearer jm_x"})
            document = problem(response, 503, "database_unavailable")
            assert document["retryable"] is True
            assert response.headers["retry-after"]
            ready = await client.get("/readyz")
            assert problem(ready, 503, "not_ready")["details"]["checks"]["database"]["ok"] is False  # type: ignore[index]
            assert (await client.get("/healthz")).status_code == 200


async def test_problems_are_in_the_openapi_document(api: RunningApi) -> None:
    async with api.caller() as caller:
        document = (await caller.get("/openapi.json")).json()
    assert "Problem" in document["components"]["schemas"]
    assert "FieldError" in document["components"]["schemas"]
    for path, operations in document["paths"].items():
        if path.startswith("/v1"):
            for operation in operations.values():
                assert set(operation["responses"]) >= {"4XX", "5XX"}, path
                assert "422" not in operation["responses"], path


async def test_many_requests_at_once_do_not_exhaust_the_process(caller: Caller) -> None:
    responses = await asyncio.gather(*(caller.get("/v1/me") for _ in range(60)))
    assert {response.status_code for response in responses} == {200}


async def test_starts_before_postgres_and_serves_when_it_is_there(clean_settings: Settings, tmp_path: Path) -> None:
    async with Proxy.to_database(clean_settings.database_url) as proxy:
        proxy.refuse()
        settings = api_settings(clean_settings, tmp_path, database_url=proxy.url)
        starting = asyncio.create_task(_start_and_ask(settings))
        done, _ = await asyncio.wait({starting}, timeout=0.5)
        assert not done
        proxy.accept()
        assert await asyncio.wait_for(starting, 20) == 401


async def _start_and_ask(settings: Settings) -> int:
    async with running(settings) as api:
        client = httpx.AsyncClient(transport=httpx.ASGITransport(api.app), base_url="http://api.test")
        async with client:
            return (await client.get("/v1/me")).status_code
