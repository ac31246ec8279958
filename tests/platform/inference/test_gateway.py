import asyncio
import json
import random
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp
import pytest
import sqlalchemy as sa
from aiohttp import web

from journeyman.platform.inference.client import OpenAIModelEngine, request_body
from journeyman.platform.inference.errors import ModelRejected, ModelUnavailable
from journeyman.platform.inference.gateway import running
from journeyman.platform.inference.gateway.app import create_gateway
from journeyman.platform.inference.gateway.metrics import JOINED
from journeyman.platform.inference.gateway.settlement import Settlements
from journeyman.platform.inference.ledger import LedgerCall, LedgerService
from journeyman.platform.inference.models import LedgerEntry
from journeyman.platform.inference.port import CallIdentity, TokenUsage
from journeyman.platform.inference.pricing import Price, PriceTable
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.errors import BudgetExhausted
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.settings import Settings
from journeyman.platform.tasks.models import Task
from journeyman.platform.tenancy import service as tenancy
from support.rows import make_project, make_task

INTERNAL = "internal-secret-of-the-tests"
MODEL_KEY = "sk-model-key-of-the-operator"


@pytest.fixture
def gateway_settings(engine, tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text(
        json.dumps({"models": [{"match": "engine-*", "input": 1000, "cached_input": 100, "output": 2000}]})
    )
    return Settings(
        internal_secret=INTERNAL,
        model_base_url=engine.base_url,
        model_api_key=MODEL_KEY,
        model_standard="engine-large",
        model_fast="engine-small",
        model_prices=prices,
        model_timeout_s=5,
        embedding_base_url=engine.base_url,
    )


@pytest.fixture
async def gateway(gateway_settings, database, serve_app):
    return await serve_app(create_gateway(gateway_settings, database))


@pytest.fixture
async def project(database):
    return await make_project(database)


@pytest.fixture
async def task(database, project):
    return await make_task(database, project)


@pytest.fixture
async def client(gateway):
    client = OpenAIModelEngine(f"{gateway}/v1", INTERNAL)
    yield client
    await client.close()


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


def internal(project, task=None, step="step-1", attempt=1):
    headers = CallIdentity(project, step, attempt, task).headers()
    return {"Authorization": f"Bearer {INTERNAL}", **headers}


async def entries(database, project):
    async with database.transaction() as session:
        query = sa.select(LedgerEntry).where(LedgerEntry.project_id == project).order_by(LedgerEntry.attempt)
        return list(await session.scalars(query))


async def entry_in_state(database, project, state):
    """The project's only entry, once it is in the state."""
    async with asyncio.timeout(10):
        while True:
            found = await entries(database, project)
            if len(found) == 1 and found[0].state == state:
                return found[0]
            await asyncio.sleep(0.01)


async def set_budget(database, task, **budget):
    async with database.transaction() as session:
        await session.execute(sa.update(Task).where(Task.id == task).values(budget=budget))


CHAT = {"model": "standard", "messages": [{"role": "user", "content": "Hi"}]}


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


async def test_one_entry_a_request_id(client, database, project, model_request):
    for number, attempt in enumerate((1, 2, 2)):
        messages = [{"role": "user", "content": f"Question {number}"}]
        await client.complete(model_request(identity=CallIdentity(project, "step", attempt), messages=messages))
    assert [(e.attempt, e.state) for e in await entries(database, project)] == [
        (1, "settled"),
        (2, "settled"),
        (3, "settled"),
    ]


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_step_asked_twice_at_once_is_sent_once(client, engine, database, project, model_request, attempt):
    release = asyncio.Event()

    async def handler(request):
        await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    first = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step"))))
    await asyncio.wait_for(engine.entered.wait(), 5)
    # The first caller may be frozen, with a connection that stands.
    second = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step", attempt))))
    await until_joined(1)
    release.set()
    assert [answer.text for answer in await asyncio.gather(first, second)] == ["Hello", "Hello"]
    assert len(engine.requests) == 1
    assert [(e.attempt, e.state, e.estimated) for e in await entries(database, project)] == [(1, "settled", False)]


async def test_a_newer_attempt_gets_the_answer_that_its_dead_caller_had_begun_to_read(
    http, gateway, client, engine, database, project, model_request, wire
):
    release = asyncio.Event()

    async def handler(request):
        response = await engine.open_stream(request)
        await response.write(wire.sse(wire.chunk({"content": "one "})))
        await release.wait()
        for event in (wire.chunk({"content": "two"}), wire.chunk({}, "stop"), wire.usage_chunk(), b"[DONE]"):
            await response.write(wire.sse(event))
        return response

    engine.handler = handler
    request = model_request(identity=CallIdentity(project, "step", 2))
    async with http.post(
        f"{gateway}/v1/chat/completions", data=request_body(request), headers=internal(project, step="step", attempt=1)
    ) as response:
        assert b"one" in await response.content.readany()
        response.close()
    again = asyncio.create_task(client.complete(request))
    await until_joined(1)
    assert not engine.cancelled.is_set()
    release.set()
    assert (await again).text == "one two"
    assert len(engine.requests) == 1
    assert [(e.attempt, e.state, e.estimated) for e in await entries(database, project)] == [(1, "settled", False)]


async def test_an_answer_that_ends_while_nobody_listens_is_there_for_who_comes_back(
    http, gateway, client, engine, database, project, model_request
):
    release = asyncio.Event()

    async def handler(request):
        await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    request = model_request(identity=CallIdentity(project, "step", 2))
    call = asyncio.create_task(
        http.post(f"{gateway}/v1/chat/completions", data=request_body(request), headers=internal(project, step="step"))
    )
    await asyncio.wait_for(engine.entered.wait(), 5)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    release.set()
    await entry_in_state(database, project, "settled")
    assert (await client.complete(request)).text == "Hello"
    assert len(engine.requests) == 1


async def test_a_newer_attempt_with_another_request_ends_the_one_before_it(
    client, engine, database, project, model_request
):
    release = asyncio.Event()

    async def handler(request):
        if len(engine.requests) == 1:
            await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    other = [{"role": "user", "content": "And what a person said meanwhile"}]
    frozen = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step", 1))))
    await asyncio.wait_for(engine.entered.wait(), 5)
    answer = await client.complete(model_request(identity=CallIdentity(project, "step", 2), messages=other))
    assert answer.text == "Hello"
    with pytest.raises(ModelUnavailable, match="given up"):
        await frozen
    release.set()
    # One answer was paid; what the other cost is an estimate, and says so.
    assert [(e.attempt, e.state, e.estimated) for e in await entries(database, project)] == [
        (1, "settled", True),
        (2, "settled", False),
    ]
    # An older attempt that comes late does not end a newer one, and gets the answer that is there.
    again = await client.complete(model_request(identity=CallIdentity(project, "step", 1), messages=other))
    assert again.text == "Hello"
    assert len(engine.requests) == 2


async def until_joined(count):
    before = JOINED._value.get()
    async with asyncio.timeout(5):
        while JOINED._value.get() < before + count:
            await asyncio.sleep(0.005)


async def test_an_attempt_that_a_killed_gateway_left_becomes_ambiguous(client, database, project, model_request):
    dead = LedgerService(database, PriceTable())
    reservation = await dead.reserve(LedgerCall(project, "step", 1, "model", "m", 10, 20))
    await client.complete(model_request(identity=CallIdentity(project, "step", 2)))
    assert next((e.attempt, e.state, e.reserved_tokens) for e in await entries(database, project)) == (
        1,
        "ambiguous",
        30,
    )
    assert [e.state for e in await entries(database, project)] == ["ambiguous", "settled"]
    usage = await dead.usage_of_project(project)
    assert (usage.calls, usage.ambiguous_calls, usage.ambiguous_tokens) == (1, 1, 30)
    # Its end becomes known after all.
    assert await dead.release(reservation)
    assert not await dead.release(reservation)


async def test_a_step_scheduled_afresh_is_not_stopped_by_its_past(client, database, project, model_request):
    await LedgerService(database, PriceTable()).reserve(LedgerCall(project, "step", 1, "model", "m", 10, 20))
    await client.complete(model_request(identity=CallIdentity(project, "step", 1)))
    assert [(e.attempt, e.state) for e in await entries(database, project)] == [(1, "ambiguous"), (2, "settled")]


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


@pytest.mark.parametrize("how", ["a project's key", "cancelled", "nobody came back"])
@pytest.mark.parametrize("when", ["before the first chunk", "in the stream"])
async def test_a_call_that_nobody_wants_ends_the_engines_work(
    http, gateway, client, engine, database, project, wire, when, how, monkeypatch
):
    if how == "nobody came back":
        monkeypatch.setattr(running, "ORPHANED_S", 0.2)

    async def handler(request):
        if when == "in the stream":
            response = await engine.open_stream(request)
            for _ in range(5):
                await response.write(wire.sse(wire.chunk({"content": "word"})))
        await asyncio.Event().wait()

    engine.handler = handler
    body = {**CHAT, "stream": when == "in the stream"}
    headers = internal(project)
    if how == "a project's key":
        async with database.transaction() as session:
            headers = {"Authorization": f"Bearer {(await tenancy.create_key(session, project, 'k', 'member')).secret}"}
    call = asyncio.create_task(http.post(f"{gateway}/v1/chat/completions", json=body, headers=headers))
    await asyncio.wait_for(engine.entered.wait(), 5)
    if when == "in the stream":
        response = await call
        await response.content.readany()
        response.close()
    else:
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    if how == "cancelled":
        assert not engine.cancelled.is_set()
        await client.cancel(CallIdentity(project, "step-1"))
    await asyncio.wait_for(engine.cancelled.wait(), 2)
    entry = await entry_in_state(database, project, "settled")
    assert entry.estimated
    assert entry.prompt_tokens > 0
    assert entry.completion_tokens == (4 if when == "in the stream" else 0)


async def test_only_ones_own_call_can_be_cancelled(http, gateway, client, engine, database, project, model_request):
    release = asyncio.Event()

    async def handler(request):
        await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    call = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step", 2))))
    await asyncio.wait_for(engine.entered.wait(), 5)
    url = f"{gateway}/v1/chat/completions/cancel"
    async with database.transaction() as session:
        key = await tenancy.create_key(session, project, "test", "member")
    theirs = {"Authorization": f"Bearer {key.secret}", "X-Journeyman-Request": "step"}
    async with http.post(url, headers=theirs) as response:
        assert response.status == 422
    # An older attempt's end, of a worker that was frozen, is not that of the newer one; nor is another step's.
    for headers in (internal(project, step="step", attempt=1), internal(project, step="other", attempt=2)):
        async with http.post(url, headers=headers) as response:
            assert await response.json() == {"cancelled": False}
    release.set()
    assert (await call).text == "Hello"


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
        assert (await response.json())["code"] == "engine_stream_broken"


@pytest.mark.parametrize(("status", "error"), [(429, ModelUnavailable), (500, ModelUnavailable), (400, ModelRejected)])
async def test_the_engines_refusals_cost_nothing(client, engine, database, project, model_request, status, error):
    async def handler(request):
        message = {"error": {"message": f"no: {MODEL_KEY}"}}
        return web.json_response(message, status=status, headers={"Retry-After": "3"})

    engine.handler = handler
    with pytest.raises(error, match="no:") as caught:
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    assert MODEL_KEY not in str(caught.value)
    if status == 429:
        assert caught.value.retry_after_s == 3
    [entry] = await entries(database, project)
    assert (entry.state, entry.cost_usd) == ("released", 0)


async def test_the_operators_key_is_not_the_callers_fault(client, engine, project, model_request):
    async def handler(request):
        return web.json_response({"error": {"message": f"Incorrect API key provided: {MODEL_KEY}"}}, status=401)

    engine.handler = handler
    with pytest.raises(ModelRejected, match="JOURNEYMAN_MODEL_API_KEY") as caught:
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    assert MODEL_KEY not in str(caught.value)


async def test_an_engine_that_is_down(gateway_settings, database, serve_app, project, model_request, unused_port):
    settings = gateway_settings.model_copy(update={"model_base_url": f"http://127.0.0.1:{unused_port}/v1"})
    client = OpenAIModelEngine(f"{await serve_app(create_gateway(settings, database))}/v1", INTERNAL)
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    [entry] = await entries(database, project)
    assert entry.state == "released"
    await client.close()


@pytest.mark.parametrize("how", ["silence", "disconnect"])
async def test_an_engine_that_takes_the_call_and_never_answers_leaves_it_ambiguous(
    gateway_settings, database, serve_app, engine, project, model_request, how
):
    async def handler(request):
        if how == "silence":
            await asyncio.Event().wait()
        request.transport.close()
        return web.Response()

    engine.handler = handler
    settings = gateway_settings.model_copy(update={"model_timeout_s": 0.3})
    client = OpenAIModelEngine(f"{await serve_app(create_gateway(settings, database))}/v1", INTERNAL)
    with pytest.raises(ModelUnavailable, match="said nothing"):
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    [entry] = await entries(database, project)
    assert entry.state == "ambiguous"
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


class Cable:
    """A TCP connection to the database that can be cut and mended."""

    def __init__(self, url):
        self.target = (urlsplit(url).hostname, urlsplit(url).port)
        self.is_cut = False
        self.writers = set()
        self.tasks = set()

    async def serve(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def accept(self, reader, writer):
        self.writers.add(writer)
        if not self.is_cut:
            onward_reader, onward = await asyncio.open_connection(*self.target)
            self.writers.add(onward)
            for source, sink in ((reader, onward), (onward_reader, writer)):
                task = asyncio.create_task(self.pump(source, sink))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        else:
            writer.close()

    async def pump(self, source, sink):
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    def cut(self):
        self.is_cut = True
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def close(self):
        self.server.close()
        self.cut()
        await asyncio.gather(*self.tasks)


async def test_a_call_that_ends_while_the_database_is_away_is_settled_later(
    gateway_settings, database, postgres_url, serve_app, engine, project, model_request
):
    cable = Cable(postgres_url)
    port = await cable.serve()
    own = Database(create_engine(postgres_url.replace(f":{urlsplit(postgres_url).port}/", f":{port}/")))
    client = OpenAIModelEngine(f"{await serve_app(create_gateway(gateway_settings, own))}/v1", INTERNAL)

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
    await client.close()
    await own.close()
    await cable.close()


async def test_an_answer_that_the_database_missed_is_not_bought_again(
    gateway_settings, database, postgres_url, serve_app, engine, project, model_request
):
    cable = Cable(postgres_url)
    port = await cable.serve()
    own = Database(create_engine(postgres_url.replace(f":{urlsplit(postgres_url).port}/", f":{port}/")))
    client = OpenAIModelEngine(f"{await serve_app(create_gateway(gateway_settings, own))}/v1", INTERNAL)

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
    await client.close()
    await own.close()
    await cable.close()


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


async def test_projects_may_use_the_same_request_id(client, database, project, model_request):
    other = await make_project(database)
    for owner in (project, other):
        await client.complete(model_request(identity=CallIdentity(owner, "same")))
        assert len(await entries(database, owner)) == 1


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


async def test_who_listens_to_a_call_that_is_given_up_is_told_so(http, gateway, engine, project, wire):
    async def handler(request):
        response = await engine.open_stream(request)
        await response.write(wire.sse(wire.chunk({"content": "one "})))
        await asyncio.Event().wait()

    engine.handler = handler
    headers = internal(project)
    body = {**CHAT, "stream": True}
    async with http.post(f"{gateway}/v1/chat/completions", json=body, headers=headers) as response:
        assert b"one" in await response.content.readany()
        async with http.post(f"{gateway}/v1/chat/completions/cancel", headers=headers) as cancelled:
            assert (await cancelled.json())["cancelled"] is True
        rest = await response.read()
    assert b"[DONE]" not in rest
    assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == "call_ended"


async def test_a_step_given_up_while_it_was_reserved_still_counts_as_one(gateway_settings, database, project):
    """What is given up so is released late: the step's next attempt waits for that, or neither would count."""
    ledger = LedgerService(database, PriceTable.from_settings(gateway_settings))
    settlements = Settlements(ledger)

    def call(step, attempt):
        return LedgerCall(project, step, attempt, "model", "engine-large", prompt_tokens=1, max_completion_tokens=1)

    await ledger.release(await ledger.reserve(call("before", 1)))
    account = sa.text("SELECT steps FROM budget_accounts WHERE scope = :project FOR UPDATE")
    waits = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    async def until_waiting(count):
        async with asyncio.timeout(10):
            while True:
                async with database.transaction() as session:
                    if await session.scalar(waits) >= count:
                        return
                await asyncio.sleep(0.01)

    async def lock_second():
        await second.execute(account, {"project": project})

    async with database.transaction() as first, database.transaction() as second:
        await first.execute(account, {"project": project})
        given_up = asyncio.create_task(settlements.reserve(call("step", 1)))
        await until_waiting(1)
        given_up.cancel()
        behind = asyncio.create_task(lock_second())
        await until_waiting(2)
        await first.commit()
        await behind
        # It is reserved now, and cannot be released yet.
        following = asyncio.create_task(settlements.reserve(call("step", 2)))
        await until_waiting(1)
    await ledger.settle(await following, TokenUsage(1, 0, 1))
    await settlements.drain(10)
    assert [(e.step_key, e.state, e.steps) for e in await entries(database, project) if e.step_key == "step"] == [
        ("step", "released", 1),
        ("step", "settled", 1),
    ]
    async with database.transaction() as session:
        assert await session.scalar(account, {"project": project}) == 1


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
