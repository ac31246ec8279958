"""What counts as a whole answer, whatever an engine's stream looks like: gateway, ledger and client agree."""

import asyncio
import json

import pytest
from aiohttp import web

from journeyman.platform.inference.client import OpenAIModelEngine
from journeyman.platform.inference.errors import ModelUnavailable
from journeyman.platform.inference.gateway.app import create_gateway
from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.ledger.usage import TokenUsage
from support.gateway import INTERNAL, entries

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "shell", "arguments": '{"command":"ls"}'}}


@pytest.fixture
def ask(client, project, model_request):
    async def ask(attempt=1):
        return await client.complete(model_request(identity=CallIdentity(project, "step", attempt)))

    return ask


def streams(engine, *pieces, content_type="text/event-stream", stays_open=False):
    async def handler(request):
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if stays_open:
            await asyncio.Event().wait()
        await response.write_eof()
        return response

    engine.handler = handler


async def test_done_after_content_ends_an_answer_without_a_finish_reason(engine, wire, ask):
    streams(engine, wire.sse(wire.chunk({"content": "Hello"})), wire.sse(b"[DONE]"))
    answer = await ask()
    assert (answer.text, answer.finish_reason) == ("Hello", "stop")


async def test_done_after_a_tool_call_ends_an_answer_without_a_finish_reason(engine, wire, ask):
    streams(engine, wire.sse(wire.chunk({"tool_calls": [CALL]}, "")), wire.sse(b"[DONE]"))
    answer = await ask()
    assert answer.finish_reason == "tool_calls"
    assert answer.tool_calls[0].name == "shell"


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param([], id="the end"),
        pytest.param([{"content": ""}], id="an empty piece"),
    ],
)
async def test_an_empty_finish_reason_and_the_end_is_no_answer(engine, wire, ask, database, project, tail):
    streams(engine, wire.sse(wire.chunk({"content": "Hel"}, "")), *(wire.sse(wire.chunk(piece, "")) for piece in tail))
    with pytest.raises(ModelUnavailable, match="without a finish reason"):
        await ask()
    streams(engine, wire.sse(wire.chunk({"content": "Hello"}, "stop")), wire.sse(b"[DONE]"))
    assert (await ask(2)).text == "Hello", "nothing broken may be kept and given again"


async def test_done_alone_is_no_answer(engine, wire, ask):
    streams(engine, wire.sse(wire.chunk({"role": "assistant", "content": ""})), wire.sse(b"[DONE]"))
    with pytest.raises(ModelUnavailable, match="without an answer"):
        await ask()


async def test_a_socket_that_stays_open_after_done_ends_nothing_late(engine, wire, ask, database, project):
    streams(engine, wire.sse(wire.chunk({"content": "Hello"}, "stop")), wire.sse(b"[DONE]"), stays_open=True)
    async with asyncio.timeout(4):
        assert (await ask()).text == "Hello"
    [entry] = await entries(database, project)
    assert entry.state == "settled"


async def test_comments_do_not_keep_a_call_for_ever(
    gateway_settings, database, serve_app, engine, project, model_request
):
    async def handler(request):
        response = await engine.open_stream(request)
        while True:
            await response.write(b": keep-alive\n\n")
            await asyncio.sleep(0.02)

    engine.handler = handler
    settings = gateway_settings.model_copy(update={"model_timeout_s": 0.3})
    client = OpenAIModelEngine(f"{await serve_app(create_gateway(settings, database))}/v1", INTERNAL)
    with pytest.raises(ModelUnavailable, match="fell silent"):
        await client.complete(model_request(identity=CallIdentity(project, "s")))
    await client.close()


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"CUDA out of memory"}}\n\n',
        b'data: {"id":"x","object":"chat.completion.chunk","error":{"code":500,"message":"CUDA out of memory"}}\n\n',
        b'data: {"object":"error","message":"CUDA out of memory","code":500}\n\n',
        b'data: {"error":"CUDA out of memory"}\n\n',
        b'event: error\ndata: {"message":"CUDA out of memory"}\n\n',
    ],
)
@pytest.mark.parametrize("early", [True, False])
async def test_an_error_event_is_told_at_once_in_the_engines_words(engine, wire, ask, event, early):
    begun = () if early else (wire.sse(wire.chunk({"content": "Hel"})),)
    streams(engine, *begun, event, wire.sse(b"[DONE]"))
    with pytest.raises(ModelUnavailable, match="CUDA out of memory"):
        await ask()
    streams(engine, wire.sse(wire.chunk({"content": "Hello"}, "stop")), wire.sse(b"[DONE]"))
    assert (await ask(2)).text == "Hello"


async def test_the_word_error_in_an_answer_is_no_error(engine, wire, ask):
    text = 'data: {"error": {"message": "x"}}'
    streams(engine, wire.sse(wire.chunk({"content": text}, None, error=None)), wire.sse(wire.chunk({}, "stop")))
    assert (await ask()).text == text


@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "application/octet-stream"])
async def test_a_stream_under_another_type_is_a_stream(engine, wire, ask, content_type):
    streams(
        engine,
        b": hello\n\n" + wire.sse(wire.chunk({"content": "Hello"}, "stop")) + wire.sse(wire.usage_chunk()),
        wire.sse(b"[DONE]"),
        content_type=content_type,
    )
    answer = await ask()
    assert answer.text == "Hello"
    assert answer.usage is not None


async def test_a_whole_completion_in_place_of_a_stream_is_an_answer(engine, wire, ask, database, project):
    async def handler(_):
        message = {
            "role": "assistant",
            "content": "Hi",
            "tool_calls": [{k: v for k, v in CALL.items() if k != "index"}],
        }
        choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
        return web.json_response({"id": "c", "model": "m", "choices": choices, "usage": wire.USAGE})

    engine.handler = handler
    answer = await ask()
    assert (answer.text, answer.tool_calls[0].arguments) == ("Hi", '{"command":"ls"}')
    [entry] = await entries(database, project)
    assert (entry.state, entry.estimated) == ("settled", False)


async def test_a_web_page_is_no_answer_and_is_not_kept(engine, wire, ask):
    async def page(_):
        return web.Response(text="<html>Welcome</html>", content_type="text/html")

    engine.handler = page
    with pytest.raises(ModelUnavailable, match="web page"):
        await ask()
    engine.handler = engine.plain
    assert (await ask(2)).text == "Hello"


async def test_a_last_event_without_its_blank_line_counts(engine, wire, ask):
    streams(engine, wire.sse(wire.chunk({"content": "Hello"})), wire.sse(wire.chunk({}, "stop")).rstrip())
    assert (await ask()).text == "Hello"


async def test_content_may_be_a_list_of_parts(engine, wire, ask):
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Hello"}]
    streams(engine, wire.sse(wire.chunk({"content": parts}, "stop")), wire.sse(b"[DONE]"))
    answer = await ask()
    assert (answer.text, answer.reasoning) == ("Hello", "Hm.")


def pieces(*fragments):
    return [{"tool_calls": [fragment]} for fragment in fragments]


def call(arguments, name=None, **more):
    return {"function": {"arguments": arguments, **({} if name is None else {"name": name})}, **more}


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        pytest.param(
            [call('{"a":1}', "f", index=0, id="x"), call('{"b":2}', "g", index=0, id="y")],
            [("f", '{"a":1}'), ("g", '{"b":2}')],
            id="parallel calls at index 0",
        ),
        pytest.param(
            [call('{"a":1}', "f", index=0), call('{"b":2}', "f", index=0)],
            [("f", '{"a":1}'), ("f", '{"b":2}')],
            id="parallel calls at index 0 without ids",
        ),
        pytest.param(
            [call('{"a', "f", index=0, id="x"), call('{"a":', index=0, id="x"), call('{"a":1}', index=0, id="x")],
            [("f", '{"a":1}')],
            id="cumulative arguments",
        ),
        pytest.param(
            [call("{}", "f", index=0, id="x"), call('{"a":', index=0), call("1}", index=0)],
            [("f", '{"a":1}')],
            id="an empty object before the arguments",
        ),
        pytest.param(
            [call('{"a":"', "f", id="x"), call('{"b":"', "g", id="y"), call('1"}', id="x"), call('2"}', id="y")],
            [("f", '{"a":"1"}'), ("g", '{"b":"2"}')],
            id="interleaved by id without index",
        ),
        pytest.param([call({"a": 1}, "f", index=0)], [("f", '{"a": 1}')], id="arguments as an object"),
        pytest.param(
            [call("{}", "functions.shell<|channel|>commentary", index=0)],
            [("shell", "{}")],
            id="a name with control tokens",
        ),
    ],
)
async def test_tool_calls_in_all_dialects(engine, wire, ask, fragments, expected):
    events = [wire.sse(wire.chunk(piece)) for piece in pieces(*fragments)]
    streams(engine, *events, wire.sse(wire.chunk({}, "tool_calls")), wire.sse(b"[DONE]"))
    answer = await ask()
    assert [(call.name, call.arguments) for call in answer.tool_calls] == expected
    assert len({call.id for call in answer.tool_calls}) == len(expected)


async def test_a_providers_own_fields_of_a_call_are_kept(engine, wire, ask):
    signed = {**CALL, "extra_content": {"google": {"thought_signature": "abc"}}}
    streams(engine, wire.sse(wire.chunk({"tool_calls": [signed]}, "tool_calls")), wire.sse(b"[DONE]"))
    [kept] = (await ask()).tool_calls
    assert kept.extra == {"extra_content": {"google": {"thought_signature": "abc"}}}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10**30, "completion_tokens": 1}, None),
        ({"prompt_tokens": -5, "completion_tokens": -1}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({}, None),
        ("many", None),
        ({"prompt_tokens": "12", "completion_tokens": 3.0, "prompt_tokens_details": "none"}, TokenUsage(12, 0, 3, 0)),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 90}},
            TokenUsage(100, 90, 5, 0),
        ),
        (
            {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 10, "output_tokens": 4},
            TokenUsage(100, 80, 4, 0),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 22,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            TokenUsage(10, 0, 12, 7),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            TokenUsage(10, 0, 5, 3),
        ),
    ],
)
async def test_usage_is_what_can_be_meant(engine, wire, ask, database, project, usage, expected):
    last = json.dumps({**wire.usage_chunk(), "usage": usage}).encode()
    streams(engine, wire.sse(wire.chunk({"content": "Hello"}, "stop")), wire.sse(last), wire.sse(b"[DONE]"))
    answer = await ask()
    assert answer.usage == expected
    [entry] = await entries(database, project)
    assert entry.estimated == (expected is None)


async def test_a_stream_without_content_is_bounded(engine, wire, ask, monkeypatch):
    from journeyman.platform.inference.gateway import calls

    monkeypatch.setattr(calls, "MAX_BODY", 100_000)
    role = wire.sse(wire.chunk({"role": "assistant", "content": ""}))
    streams(engine, *([role * 100] * 50))
    with pytest.raises(ModelUnavailable, match="more than anybody can take"):
        await ask()
