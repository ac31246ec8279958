import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web

from journeyman.platform.inference.client import OpenAIModelEngine, retry_after_seconds
from journeyman.platform.inference.errors import ModelRejected, ModelUnavailable
from journeyman.platform.inference.gateway.upstream import proxy_of
from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.kit.errors import BudgetExhausted

SECRET = "sk-test-very-secret-key"


@pytest.fixture
async def client(engine):
    client = OpenAIModelEngine(engine.base_url, SECRET)
    yield client
    await client.close()


async def test_a_whole_answer(client, engine, model_request, wire):
    deltas = []

    async def handler(request):
        return await engine.stream(
            request,
            wire.chunk({"role": "assistant", "content": ""}),
            wire.chunk({"reasoning_content": "Hm. "}),
            wire.chunk({"reasoning_content": "Yes."}),
            wire.chunk({"content": "Let me "}),
            wire.chunk({"content": "look 🙂."}),
            wire.chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "shell", "arguments": ""}}]}),
            wire.chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"command": "ls"}'}}]}),
            wire.chunk({}, "tool_calls"),
            wire.usage_chunk(),
            b"[DONE]",
        )

    engine.handler = handler
    tools = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "reasoning_content": "kept", "tool_calls": []},
    ]
    identity = CallIdentity("proj_1", "task_1/thr_1/4", 2, "task_1", "thr_1")
    answer = await client.complete(
        model_request(messages=messages, tools=tools, max_tokens=55, temperature=0.2, identity=identity), deltas.append
    )
    assert answer.text == "Let me look 🙂."
    assert answer.reasoning == "Hm. Yes."
    assert [(c.id, c.name, c.arguments) for c in answer.tool_calls] == [("c1", "shell", '{"command": "ls"}')]
    assert answer.finish_reason == "tool_calls"
    assert answer.model == "m"
    assert answer.request_id == "task_1/thr_1/4"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens) == (
        100,
        64,
        7,
        3,
    )
    assert 0 < answer.ttft_s <= answer.duration_s
    assert "".join(d.text for d in deltas if d.kind == "text") == answer.text
    sent = engine.requests[0]
    assert sent["messages"] == messages
    assert sent["tools"] == tools
    assert sent["stream_options"] == {"include_usage": True}
    assert (sent["max_tokens"], sent["temperature"]) == (55, 0.2)
    headers = {name.lower(): value for name, value in engine.headers[0].items()}
    assert headers["x-journeyman-project"] == "proj_1"
    assert headers["x-journeyman-task"] == "task_1"
    assert headers["x-journeyman-thread"] == "thr_1"
    assert headers["x-journeyman-request"] == "task_1/thr_1/4"
    assert headers["x-journeyman-attempt"] == "2"


async def test_the_same_request_has_the_same_bytes(client, engine, model_request):
    await client.complete(model_request())
    await client.complete(model_request())
    assert engine.raw[0] == engine.raw[1]


async def test_an_empty_answer_is_an_answer(client, engine, model_request, wire):
    async def handler(request):
        return await engine.stream(request, wire.chunk({}, "stop"), b"[DONE]")

    engine.handler = handler
    answer = await client.complete(model_request())
    assert (answer.text, answer.tool_calls, answer.usage) == ("", (), None)


async def test_a_stream_without_done_counts_when_it_has_a_finish_reason(client, engine, model_request, wire):
    async def handler(request):
        return await engine.stream(request, wire.chunk({"content": "x"}, "stop"))

    engine.handler = handler
    assert (await client.complete(model_request())).text == "x"


@pytest.mark.parametrize("ending", ["eof", "done", "reset", "half event", "garbage", "no object"])
async def test_broken_streams_are_errors(client, engine, model_request, wire, ending):
    async def handler(request):
        response = await engine.open_stream(request)
        await response.write(wire.sse(wire.chunk({"content": "half an ans"})))
        if ending == "reset":
            request.transport.close()
            return response
        if ending == "done":
            await response.write(b"data: [DONE]\n\n")
        if ending == "half event":
            await response.write(b'data: {"choices": [{"del')
        if ending == "garbage":
            await response.write(b"data: {nope\n\n")
        if ending == "no object":
            await response.write(b'data: {"choices": 7}\n\ndata: [1]\n\n')
        await response.write_eof()
        return response

    engine.handler = handler
    with pytest.raises(ModelUnavailable) as caught:
        await client.complete(model_request())
    assert caught.value.retryable


async def test_an_error_in_the_stream(client, engine, model_request, wire):
    async def handler(request):
        error = {"error": {"message": f"out of memory, key {SECRET}", "code": 500}}
        return await engine.stream(request, wire.chunk({"content": "half"}), error)

    engine.handler = handler
    with pytest.raises(ModelUnavailable, match="out of memory") as caught:
        await client.complete(model_request())
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_retryable_statuses(client, engine, model_request, status):
    async def handler(request):
        return web.json_response({"error": {"message": "busy"}}, status=status, headers={"Retry-After": "7"})

    engine.handler = handler
    with pytest.raises(ModelUnavailable, match="busy") as caught:
        await client.complete(model_request())
    assert caught.value.retryable
    assert caught.value.retry_after_s == 7
    assert len(engine.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_rejections(client, engine, model_request, status):
    async def handler(request):
        text = f"context too long; Incorrect API key provided: sk-ab***xyz, {SECRET} " + "x" * 100_000
        return web.json_response({"error": {"message": text}}, status=status)

    engine.handler = handler
    with pytest.raises(ModelRejected, match="context too long") as caught:
        await client.complete(model_request())
    assert not caught.value.retryable
    assert SECRET not in str(caught.value)
    assert "sk-ab" not in str(caught.value)
    assert len(str(caught.value)) < 3000


async def test_what_the_body_says_about_retrying_counts(client, engine, model_request):
    async def handler(request):
        return web.json_response({"error": {"message": "no key", "retryable": False}}, status=502)

    engine.handler = handler
    with pytest.raises(ModelRejected, match="no key"):
        await client.complete(model_request())


async def test_an_error_page_that_is_no_json(client, engine, model_request):
    async def handler(request):
        return web.Response(status=502, text="<html>Bad gateway</html>", content_type="text/html")

    engine.handler = handler
    with pytest.raises(ModelUnavailable, match="Bad gateway"):
        await client.complete(model_request())


async def test_budget_exhausted_passes_through(client, engine, model_request):
    async def handler(request):
        details = {"limit": "max_tokens", "maximum": 10, "spent": 9, "requested": 5}
        error = {"message": "no", "code": "budget_exhausted", "retryable": False, "details": details}
        return web.json_response({"error": error}, status=402)

    engine.handler = handler
    with pytest.raises(BudgetExhausted) as caught:
        await client.complete(model_request())
    assert caught.value.details["limit"] == "max_tokens"
    assert caught.value.details["spent"] == 9


async def test_another_402_is_a_rejection(client, engine, model_request):
    async def handler(request):
        return web.json_response({"error": {"message": "pay your bill"}}, status=402)

    engine.handler = handler
    with pytest.raises(ModelRejected, match="pay your bill"):
        await client.complete(model_request())


async def test_nobody_listens(model_request, unused_port):
    client = OpenAIModelEngine(f"http://127.0.0.1:{unused_port}/v1", SECRET)
    with pytest.raises(ModelUnavailable, match="inference gateway cannot be reached"):
        await client.complete(model_request())
    await client.close()


@pytest.mark.parametrize("after_first_chunk", [False, True])
async def test_silence_ends_a_call(client, engine, model_request, wire, after_first_chunk):
    async def handler(request):
        if after_first_chunk:
            response = await engine.open_stream(request)
            await response.write(wire.sse(wire.chunk({"content": "a"})))
        await asyncio.Event().wait()

    engine.handler = handler
    with pytest.raises(ModelUnavailable) as caught:
        await client.complete(model_request(idle_timeout_s=0.2))
    assert caught.value.code == "model_timeout"


@pytest.mark.parametrize("after_first_chunk", [False, True])
async def test_cancelling_closes_the_stream_at_once(client, engine, model_request, wire, after_first_chunk):
    first = asyncio.Event()

    async def handler(request):
        if after_first_chunk:
            response = await engine.open_stream(request)
            await response.write(wire.sse(wire.chunk({"content": "a"})))
        await asyncio.Event().wait()

    engine.handler = handler
    task = asyncio.create_task(client.complete(model_request(), lambda _: first.set()))
    await asyncio.wait_for((first if after_first_chunk else engine.entered).wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(engine.cancelled.wait(), 2)


async def test_megabytes_of_answer(client, engine, model_request, wire):
    text = "z" * (4 * 1024 * 1024)
    arguments = json.dumps({"content": "y" * (3 * 1024 * 1024)})

    async def handler(request):
        call = {"index": 0, "id": "c1", "function": {"name": "write_file", "arguments": arguments}}
        return await engine.stream(
            request,
            wire.chunk({"content": text}),
            wire.chunk({"tool_calls": [call]}),
            wire.chunk({}, "tool_calls"),
            b"[DONE]",
        )

    engine.handler = handler
    answer = await client.complete(model_request())
    assert answer.text == text
    assert answer.tool_calls[0].arguments == arguments


def test_retry_after():
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert retry_after_seconds("2.5") == 2.5
    assert 55 < retry_after_seconds(in_a_minute) <= 60
    assert retry_after_seconds("Mon, 01 Jan 2001 00:00:00 GMT") == 0
    assert retry_after_seconds("-3") == 0
    for nonsense in (None, "", "soon", "nan", "inf"):
        assert retry_after_seconds(nonsense) is None


async def test_a_proxy_of_the_environment_is_not_asked(engine, model_request, monkeypatch, unused_port):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_port}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{unused_port}")
    client = OpenAIModelEngine(engine.base_url, SECRET)
    assert (await client.complete(model_request())).text == "Hello"
    await client.close()


def test_proxies_of_engines(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:2")
    monkeypatch.setenv("NO_PROXY", "vllm.internal")
    assert proxy_of("https://api.example.com/v1") == "http://proxy:1"
    assert proxy_of("http://10.0.0.1/v1") == "http://proxy:2"
    for url in ("http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]/v1", "http://vllm.internal/v1"):
        assert proxy_of(url) is None


async def test_a_chunk_too_deep_to_be_read_is_no_answer(client, engine, model_request):
    async def handler(request):
        return await engine.stream(request, b"[" * 100_000 + b"]" * 100_000, b"[DONE]")

    engine.handler = handler
    with pytest.raises(ModelUnavailable) as caught:
        await client.complete(model_request())
    assert caught.value.code == "model_stream_malformed"


def test_what_the_sdk_looks_for_among_the_loaded_modules_is_loaded_whole_with_it():
    code = "import sys, journeyman.platform.inference.client; sys.modules['httpx'].TimeoutException"
    subprocess.run([sys.executable, "-c", code], check=True)
