"""Engines that fail or answer oddly, and a database that is away."""

import asyncio
import json
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from journeyman.platform.inference.client import OpenAIModelEngine
from journeyman.platform.inference.errors import ModelRejected, ModelUnavailable
from journeyman.platform.inference.gateway.app import create_gateway
from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.kit.database import Database, create_engine
from support.gateway import (
    CHAT,
    INTERNAL,
    MODEL_KEY,
    Cable,
    entries,
    entry_in_state,
    internal,
)


@pytest.mark.parametrize("ending", ["reset", "eof", "half an event"])
async def test_a_broken_stream_becomes_an_error_event(http, gateway, engine, database, project, wire, ending):
    first = wire.sse(wire.chunk({"content": "half an ans"}))

    async def handler(request):
        response = await engine.open_stream(request)
        await response.write(first)
        if ending == "half an event":
            await response.write(b'data: {"choices": [{"del')
        if ending == "eof":
            await response.write_eof()
        else:
            request.transport.close()
        return response

    engine.handler = handler
    body = {**CHAT, "stream": True}
    async with http.post(f"{gateway}/v1/chat/completions", json=body, headers=internal(project)) as response:
        text = await response.read()
    assert text.startswith(first)
    assert b"[DONE]" not in text
    error = json.loads(text[len(first) :].removeprefix(b"data: "))
    assert error["error"]["code"] == "engine_stream_broken"
    assert error["error"]["retryable"] is True
    entry = await entry_in_state(database, project, "settled")
    assert entry.estimated


async def test_the_client_takes_no_broken_stream_for_an_answer(client, engine, project, model_request, wire):
    async def handler(request):
        response = await engine.open_stream(request)
        await response.write(wire.sse(wire.chunk({"content": "half"})))
        request.transport.close()
        return response

    engine.handler = handler
    with pytest.raises(ModelUnavailable, match="dropped the connection"):
        await client.complete(model_request(identity=CallIdentity(project, "s")))


async def test_a_stream_that_breaks_before_its_first_event_is_an_http_error(http, gateway, engine, project):
    async def handler(request):
        response = await engine.open_stream(request)
        request.transport.close()
        return response

    engine.handler = handler
    body = {**CHAT, "stream": True}
    async with http.post(f"{gateway}/v1/chat/completions", json=body, headers=internal(project)) as response:
        assert response.status == 503
        assert (await response.json())["code"] == "engine_dropped"


@pytest.mark.parametrize(("status", "error"), [(429, ModelUnavailable), (500, ModelUnavailable), (400, ModelRejected)])
async def test_the_engines_refusals_cost_nothing(client, engine, database, project, model_request, status, error):
    async def handler(request):
        message = {"error": {"message": f"no: {MODEL_KEY}"}}
        return web.json_response(message, status=status, headers={"Retry-After": "3"})

    engine.handler = handler
    with pytest.raises(error, match="no:") as caught:
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    assert MODEL_KEY not in str(caught.value)
    assert str(caught.value).startswith("The model's server ")
    assert f"HTTP {status}" in str(caught.value)
    if status == 429:
        assert caught.value.retry_after_s == 3
    [entry] = await entries(database, project)
    assert (entry.state, entry.cost_usd) == ("released", 0)


async def test_the_operators_key_is_not_the_callers_fault(client, engine, project, model_request):
    async def handler(request):
        return web.json_response({"error": {"message": f"Incorrect API key provided: {MODEL_KEY}"}}, status=401)

    engine.handler = handler
    with pytest.raises(ModelUnavailable, match="JOURNEYMAN_MODEL_API_KEY") as caught:
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    assert MODEL_KEY not in str(caught.value)
    assert str(caught.value).startswith("The model's server refused the platform's key or account (HTTP 401)")
    assert caught.value.code == "model_account"


async def test_an_engine_that_is_down(gateway_settings, database, serve_app, project, model_request, unused_port):
    settings = gateway_settings.model_copy(update={"model_base_url": f"http://127.0.0.1:{unused_port}/v1"})
    client = OpenAIModelEngine(f"{await serve_app(create_gateway(settings, database))}/v1", INTERNAL)
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    [entry] = await entries(database, project)
    assert entry.state == "released"
    await client.close()


@pytest.mark.parametrize(
    ("how", "words", "state"),
    [("silence", "said nothing", "ambiguous"), ("disconnect", "closed the connection", "released")],
)
async def test_only_an_engine_that_falls_silent_leaves_the_call_ambiguous(
    gateway_settings, database, serve_app, engine, project, model_request, how, words, state
):
    async def handler(request):
        if how == "silence":
            await asyncio.Event().wait()
        request.transport.close()
        return web.Response()

    engine.handler = handler
    settings = gateway_settings.model_copy(update={"model_timeout_s": 0.3})
    client = OpenAIModelEngine(f"{await serve_app(create_gateway(settings, database))}/v1", INTERNAL)
    with pytest.raises(ModelUnavailable, match=words):
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    [entry] = await entries(database, project)
    assert entry.state == state
    await client.close()


async def test_without_the_ledger_no_call_passes(gateway_settings, serve_app, engine, model_request, unused_port):
    database = Database(create_engine(f"postgresql+asyncpg://nobody@127.0.0.1:{unused_port}/nothing"))
    url = await serve_app(create_gateway(gateway_settings, database))
    client = OpenAIModelEngine(f"{url}/v1", INTERNAL)
    with pytest.raises(ModelUnavailable, match="ledger") as caught:
        await client.complete(model_request())
    assert caught.value.retry_after_s == 1
    assert engine.requests == []
    async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as response:
        assert response.status == 503
    await client.close()
    await database.close()


@pytest.fixture
async def cut_off(gateway_settings, postgres_url, serve_app):
    """A client of a gateway, and the cable from that gateway to its database."""
    cable = Cable(postgres_url)
    port = await cable.serve()
    own = Database(create_engine(postgres_url.replace(f":{urlsplit(postgres_url).port}/", f":{port}/")))
    client = OpenAIModelEngine(f"{await serve_app(create_gateway(gateway_settings, own))}/v1", INTERNAL)
    yield client, cable
    await client.close()
    await own.close()
    await cable.close()


async def test_a_call_that_ends_while_the_database_is_away_is_settled_later(
    cut_off, engine, database, project, model_request
):
    client, cable = cut_off

    async def handler(request):
        cable.cut()
        return await engine.plain(request)

    engine.handler = handler
    answer = await client.complete(model_request(identity=CallIdentity(project, "s")))
    assert answer.text == "Hello"
    [entry] = await entries(database, project)
    assert entry.state == "reserved"
    cable.is_cut = False
    entry = await entry_in_state(database, project, "settled")
    assert (entry.estimated, entry.prompt_tokens) == (False, 100)
    # A database that was away while nobody called costs no failed call.
    engine.handler = engine.plain
    cable.cut()
    cable.is_cut = False
    await client.complete(model_request(identity=CallIdentity(project, "t")))


async def test_an_answer_that_the_database_missed_is_not_bought_again(
    cut_off, engine, database, project, model_request
):
    client, cable = cut_off

    async def handler(request):
        cable.cut()
        return await engine.plain(request)

    engine.handler = handler
    await client.complete(model_request(identity=CallIdentity(project, "s", 1)))
    # The caller could not store it either, and comes back in the moment in which the database does.
    again = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "s", 2))))
    await asyncio.sleep(0)
    cable.is_cut = False
    assert (await again).text == "Hello"
    assert len(engine.requests) == 1
    assert [(e.attempt, e.state, e.estimated) for e in await entries(database, project)] == [(1, "settled", False)]


@pytest.mark.parametrize("count", [-1, 2**70, 1e300, "7", None, True, [], {"a": 1}])
async def test_whatever_the_engine_counts_the_call_is_settled(http, gateway, engine, database, project, count):
    async def handler(_request):
        usage = {"prompt_tokens": count, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
        return web.json_response({"choices": [], "usage": usage})

    engine.handler = handler
    async with http.post(f"{gateway}/v1/chat/completions", json=CHAT, headers=internal(project)) as response:
        assert response.status == 200
    entry = await entry_in_state(database, project, "settled")
    assert 0 <= entry.prompt_tokens <= 10**9


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_too_deep_to_be_read_is_passed_on_and_paid_once(
    http, gateway, engine, database, project, streamed
):
    async def handler(request):
        counted = b'{"choices": [], "usage": {"prompt_tokens": ' + DEEP + b"}}"
        if not streamed:
            return web.Response(body=counted, content_type="application/json")
        return await engine.stream(request, counted, b'{"choices": [{"finish_reason": "stop"}]}', b"[DONE]")

    engine.handler = handler
    for attempt in (1, 2):
        headers = internal(project, attempt=attempt)
        body = {**CHAT, "stream": streamed}
        async with http.post(f"{gateway}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
            assert DEEP in await response.read()
    assert len(engine.requests) == 1
    [entry] = await entries(database, project)
    assert (entry.state, entry.estimated) == ("settled", True)


async def test_a_refusal_too_deep_to_be_read_is_a_refusal(http, gateway, engine, database, project):
    async def handler(_request):
        return web.Response(status=400, body=DEEP, content_type="application/json")

    engine.handler = handler
    async with http.post(f"{gateway}/v1/chat/completions", json=CHAT, headers=internal(project)) as response:
        assert (response.status, (await response.json())["code"]) == (400, "engine_error")
    assert [entry.state for entry in await entries(database, project)] == ["released"]


@pytest.mark.parametrize("content_type", ["text/plain; name=€".encode(), b"text/plain; name=\xff\xfe"])
async def test_whatever_the_engine_calls_its_answer_the_call_is_settled(
    http, gateway_settings, database, serve_app, project, content_type
):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: " + content_type + b"\r\nConnection: close\r\n\r\n"
        writer.write(head + json.dumps({"usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        gateway_settings.model_base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        gateway = await serve_app(create_gateway(gateway_settings, database))
        async with http.post(f"{gateway}/v1/chat/completions", json=CHAT, headers=internal(project)) as response:
            assert response.status == 200
            assert (await response.json(content_type=None))["usage"]["prompt_tokens"] == 1
    [entry] = await entries(database, project)
    assert (entry.state, entry.estimated) == ("settled", False)
