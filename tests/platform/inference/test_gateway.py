"""Calls through the gateway: paid, limited, passed on untouched, refused with words."""

import asyncio
import json
import random

import pytest
import sqlalchemy as sa
from aiohttp import web

from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.errors import BudgetExhausted
from journeyman.platform.kit.ids import new_id
from journeyman.platform.ledger.models import LedgerEntry
from journeyman.platform.ledger.pricing import Price, PriceTable
from journeyman.platform.ledger.service import LedgerCall, LedgerService
from journeyman.platform.tenancy import service as tenancy
from support.gateway import (
    CHAT,
    INTERNAL,
    MODEL_KEY,
    entries,
    internal,
    set_budget,
)
from support.rows import make_task


async def test_a_streamed_call_is_paid(client, engine, database, project, task, model_request):
    identity = CallIdentity(project, "step-1", 1, task, "thr_1")
    answer = await client.complete(model_request(identity=identity))
    assert answer.text == "Hello"
    assert answer.usage.prompt_tokens == 100
    assert engine.requests[0]["model"] == "engine-large"
    [entry] = await entries(database, project)
    assert (entry.state, entry.estimated, entry.step_key, entry.attempt) == ("settled", False, "step-1", 1)
    assert (entry.task_id, entry.thread_id, entry.model) == (task, "thr_1", "engine-large")
    assert (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == (100, 64, 7)
    assert float(entry.cost_usd) == pytest.approx((36 * 1000 + 64 * 100 + 7 * 2000) / 1e6)
    headers = {name.lower(): value for name, value in engine.headers[0].items()}
    assert headers["authorization"] == f"Bearer {MODEL_KEY}"
    assert not [name for name in headers if name.startswith("x-journeyman")]


async def test_a_call_in_one_piece_is_paid(http, gateway, engine, database, project):
    body = {**CHAT, "model": "fast"}
    async with http.post(f"{gateway}/v1/chat/completions", json=body, headers=internal(project)) as response:
        assert response.status == 200
        assert (await response.json())["choices"][0]["message"]["content"] == "Hello"
    assert engine.requests[0]["model"] == "engine-small"
    [entry] = await entries(database, project)
    assert (entry.state, entry.prompt_tokens, entry.completion_tokens) == ("settled", 100, 7)


async def test_bytes_pass_untouched(http, gateway, engine, project, wire):
    events = wire.sse(wire.chunk({"content": 'tricky "usage": {} data: [DONE]\n\n'})) + b": keep-alive\n\n"
    events += b'data:  {"choices":[ {"index":0,"delta":{},"finish_reason" : "stop"}],"usage":null}\r\n\r\n'
    events += wire.sse(wire.usage_chunk()) + wire.sse(b"[DONE]")

    async def handler(request):
        response = await engine.open_stream(request)
        # Cut where it hurts most.
        for start in range(0, len(events), 7):
            await response.write(events[start : start + 7])
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    engine.handler = handler
    body = {
        **CHAT,
        "model": "other",
        "stream": True,
        "stream_options": {"include_usage": True},
        "x_own": {"b": 1, "a": 2},
    }
    raw = json.dumps(body, indent=3).encode()
    async with http.post(f"{gateway}/v1/chat/completions", data=raw, headers=internal(project)) as response:
        assert await response.read() == events
    assert engine.raw[0] == raw


async def test_usage_is_asked_for_and_hidden_from_those_who_did_not_ask(http, gateway, engine, database, project, wire):
    async with http.post(
        f"{gateway}/v1/chat/completions", json={**CHAT, "stream": True}, headers=internal(project)
    ) as response:
        text = await response.text()
    assert engine.requests[0]["stream_options"] == {"include_usage": True}
    assert "prompt_tokens" not in text
    assert text.endswith("data: [DONE]\n\n")
    [entry] = await entries(database, project)
    assert (entry.estimated, entry.prompt_tokens) == (False, 100)


async def test_usage_in_a_chunk_with_choices_counts(client, engine, database, project, model_request, wire):
    async def handler(request):
        return await engine.stream(request, wire.chunk({"content": "x"}, "stop", usage=wire.USAGE), b"[DONE]")

    engine.handler = handler
    await client.complete(model_request(identity=CallIdentity(project, "s")))
    [entry] = await entries(database, project)
    assert (entry.estimated, entry.prompt_tokens, entry.completion_tokens) == (False, 100, 7)


async def test_an_engine_that_does_not_count_is_estimated(client, engine, database, project, model_request, wire):
    async def handler(request):
        chunks = [wire.chunk({"content": "abcd " * 8}) for _ in range(50)]
        return await engine.stream(
            request, wire.chunk({"role": "assistant", "content": ""}), *chunks, wire.chunk({}, "stop"), b"[DONE]"
        )

    engine.handler = handler
    await client.complete(model_request(identity=CallIdentity(project, "s")))
    [entry] = await entries(database, project)
    assert entry.estimated
    assert 400 <= entry.completion_tokens <= 800


@pytest.mark.parametrize("budget", [{"max_tokens": 1000}, {"max_cost_usd": 1.0}])
async def test_a_budget_stops_the_call_before_it_is_sent(
    client, engine, database, project, task, model_request, budget
):
    await set_budget(database, task, **budget)
    request = model_request(identity=CallIdentity(project, "s", 1, task), max_tokens=990)
    if "max_cost_usd" in budget:
        request = model_request(identity=CallIdentity(project, "s", 1, task), max_tokens=500)
    with pytest.raises(BudgetExhausted) as caught:
        await client.complete(request)
    assert engine.requests == []
    [limit] = budget
    assert caught.value.details["limit"] == limit
    assert caught.value.details["of"] == budget[limit]
    assert caught.value.details["spent"] == 0
    assert await entries(database, project) == []
    await set_budget(database, task, max_tokens=100_000, max_cost_usd=1000)
    await client.complete(request)


async def test_concurrent_calls_never_promise_more_than_the_budget(
    client, engine, database, project, task, model_request, wire
):
    release = asyncio.Event()

    async def handler(request):
        await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    await set_budget(database, task, max_tokens=6000)
    requests = [
        model_request(identity=CallIdentity(project, f"s{number}", 1, task), max_tokens=900, idle_timeout_s=30)
        for number in range(20)
    ]
    calls = [asyncio.create_task(client.complete(request)) for request in requests]
    async with asyncio.timeout(20):
        while sum(call.done() for call in calls) + len(engine.requests) < 20:
            await asyncio.sleep(0.01)
    reserved = await entries(database, project)
    assert sum(entry.reserved_tokens for entry in reserved) <= 6000
    assert 4 <= len(reserved) <= 6
    release.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert all(isinstance(outcome, BudgetExhausted) for outcome in refused)
    assert len(refused) == 20 - len(reserved)
    usage = await LedgerService(database, PriceTable()).usage_of_task(task)
    assert usage.calls == len(reserved)
    assert usage.reserved_tokens == 0
    assert usage.prompt_tokens == 100 * len(reserved)


async def test_keys(http, gateway, database, project):
    async with database.transaction() as session:
        key = await tenancy.create_key(session, project, "test", "member")
    async with http.post(
        f"{gateway}/v1/chat/completions", json=CHAT, headers={"Authorization": f"Bearer {key.secret}"}
    ) as response:
        assert response.status == 200
    [entry] = await entries(database, project)
    assert entry.state == "settled"
    for headers in ({}, {"Authorization": "Bearer jm_wrong"}, {"Authorization": f"Basic {key.secret}"}):
        async with http.post(f"{gateway}/v1/chat/completions", json=CHAT, headers=headers) as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "unauthorized"


async def test_another_projects_task_does_not_exist(http, gateway, engine, database, project):
    theirs = await make_task(database)
    async with http.post(f"{gateway}/v1/chat/completions", json=CHAT, headers=internal(project, theirs)) as response:
        assert response.status == 404
    assert engine.requests == []


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"", "JSON"),
        (b"[]", "JSON object"),
        (b'{"model": "standard"', "JSON"),
        (b'{"messages": []}', "model"),
        (b'{"model": "standard"}', "messages"),
        (b'{"model": "standard", "messages": "x"}', "messages"),
        (b'{"model": 7, "messages": []}', "model"),
        (b'{"model": "standard", "messages": [], "max_tokens": -1}', "max_tokens"),
        (b'{"model": "standard", "messages": [], "stream": "yes"}', "stream"),
        (b'{"model": "standard", "messages": [], "stream": true, "stream_options": 3}', "stream_options"),
        (b'{"model": "\xff", "messages": []}', "UTF-8"),
        (b'{"model": "a\\u0000b", "messages": []}', "model"),
        (b'{"model": "a\\nb", "messages": []}', "model"),
        (b'{"model": "\\ud800", "messages": []}', "hex escape"),
        (b'{"model": "' + b"m" * 201 + b'", "messages": []}', "model"),
        (b'{"model": "standard", "messages": [], "max_tokens": 9223372036854775807}', "max_tokens"),
        (b'{"model": "standard", "messages": [], "max_tokens": ' + b"9" * 5000 + b"}", "max_tokens"),
        (b'{"model": "standard", "messages": [], "max_completion_tokens": 1e999}', "max_completion_tokens"),
        (b'{"model": "standard", "messages": [], "max_tokens": 1.5}', "max_tokens"),
        (b'{"model": "standard", "messages": [], "n": 1000000000000}', "n"),
        (b'{"model": "standard", "messages": ' + b"[" * 100_000, "JSON"),
        (b'{"model": ' + b"[" * 100_000 + b"]" * 100_000 + b', "messages": []}', "JSON"),
    ],
)
async def test_bodies_that_cannot_be_meant(http, gateway, engine, project, body, names):
    async with http.post(f"{gateway}/v1/chat/completions", data=body, headers=internal(project)) as response:
        assert response.status == 422
        problem = await response.json()
    assert names.lower() in problem["detail"].lower()
    assert problem["request_id"] == "step-1"
    assert engine.requests == []


async def test_no_request_makes_the_gateway_fail(http, gateway, engine, project, task):
    """Every string and number that it takes, from a table of what has broken programs, under a fixed seed."""
    chance = random.Random(11)
    strings = [
        "",
        "a\x00b",
        "\ud800",
        "\u2028",
        "é" * 300,
        "m" * 100_000,
        "standard",
        "'; DROP TABLE tasks; --",
        "\x1b[2J",
    ]
    numbers = [0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**40, 1.5, 1e308, -0.0, True]
    values = [*strings, *numbers, None, [], {}, [[[]]], {"a": {"b": None}}]
    fields = [
        "model",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "input",
        "tools",
    ]
    headers = ["X-Journeyman-Project", "X-Journeyman-Task", "X-Journeyman-Thread", "X-Journeyman-Request",
               "X-Journeyman-Attempt"]  # fmt: skip
    texts = ["é", "x" * 301, "0", "-1", "1e9", "99999999999", "a b", "x" * 300, project, task, "\xa0\x85"]
    seen = set()
    for number in range(400):
        body = {"model": "standard", "messages": [], "input": "x"}
        for _ in range(chance.randint(1, 3)):
            body[chance.choice(fields)] = chance.choice(values)
        sent = internal(project, None, f"fuzz-{number}")
        if chance.random() < 0.5:
            sent[chance.choice(headers)] = chance.choice(texts)
        path = chance.choice(["/v1/chat/completions", "/v1/embeddings"])
        data = json.dumps(body).encode()
        async with http.post(gateway + path, data=data, headers=sent) as response:
            said = await response.text()
            assert response.status in {200, 404, 422}, (response.status, path, body, sent, said)
            seen.add(response.status)
    assert seen == {200, 404, 422}
    assert len(engine.requests) > 20


async def test_paths_and_methods(http, gateway):
    async with http.get(f"{gateway}/v1/chat/completions") as response:
        assert response.status == 405
    async with http.get(f"{gateway}/nothing") as response:
        assert response.status == 404
    for path in ("/healthz", "/readyz"):
        async with http.get(gateway + path) as response:
            assert response.status == 200
    async with http.get(f"{gateway}/metrics") as response:
        assert "journeyman_gateway_calls_total" in await response.text()


async def test_models(http, gateway):
    async with http.get(f"{gateway}/v1/models", headers={"Authorization": f"Bearer {INTERNAL}"}) as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["standard", "fast", "m"]
    async with http.get(f"{gateway}/v1/models") as response:
        assert response.status == 401


async def test_embeddings(http, gateway, engine, database, project):
    async def handler(request):
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        return web.json_response(
            {"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": 9, "total_tokens": 9}}
        )

    engine.handler = handler
    async with http.post(
        f"{gateway}/v1/embeddings", json={"model": "e", "input": ["a"]}, headers=internal(project)
    ) as response:
        assert (await response.json())["data"][0]["embedding"] == [0.5, 0.25]
    [entry] = await entries(database, project)
    assert (entry.kind, entry.state, entry.prompt_tokens, entry.completion_tokens) == ("embedding", "settled", 9, 0)


async def test_megabytes_pass_through(client, engine, project, model_request, wire):
    text = "z" * (3 * 1024 * 1024)

    async def handler(request):
        pieces = [wire.chunk({"content": text[start : start + 500_000]}) for start in range(0, len(text), 500_000)]
        return await engine.stream(request, *pieces, wire.chunk({}, "stop"), b"[DONE]")

    engine.handler = handler
    prompt = [{"role": "user", "content": "p" * (4 * 1024 * 1024)}]
    answer = await client.complete(model_request(identity=CallIdentity(project, "s"), messages=prompt))
    assert answer.text == text
    assert engine.requests[0]["messages"] == prompt


async def test_reservations_of_dead_gateways_are_swept(database, project):
    ledger = LedgerService(database, PriceTable([Price(match="*", input=1, output=1)]))
    await ledger.reserve(LedgerCall(project, "old", 1, "model", "m", 10, 20))
    await ledger.mark_abandoned()
    assert (await entries(database, project))[0].state == "reserved"
    async with database.transaction() as session:
        await session.execute(
            sa.update(LedgerEntry)
            .where(LedgerEntry.project_id == project)
            .values(created_at=sa.func.now() - sa.text("interval '3 hours'"))
        )
    assert await ledger.mark_abandoned() >= 1
    assert (await entries(database, project))[0].state == "ambiguous"


async def test_sandbox_seconds_are_no_calls(database, project, task):
    row = LedgerEntry(
        id=new_id("ledger_entry"),
        project_id=project,
        task_id=task,
        thread_id=None,
        request_id=new_id("sandbox"),
        step_key="sbx_1",
        attempt=1,
        kind="sandbox",
        model=None,
        state="settled",
        estimated=False,
        reserved_tokens=0,
        reserved_cost_usd=0,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        cost_usd=0,
        seconds=12.5,
        created_at=now(),
        settled_at=now(),
    )
    async with database.transaction() as session:
        session.add(row)
    usage = await LedgerService(database, PriceTable()).usage_of_task(task)
    assert float(usage.sandbox_seconds) == 12.5
    assert usage.calls == 0
