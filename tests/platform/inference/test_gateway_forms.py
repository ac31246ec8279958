"""Refusals in the words of each family of engines: the call is sent in a form that the engine takes, or its reason is told."""

import json

import pytest
from aiohttp import web

from journeyman.platform.inference.errors import ModelRejected, ModelUnavailable
from journeyman.platform.inference.gateway.forms import BRIDGE, MAX_FORMS, EngineForm, EngineForms
from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.inference.refusals.classify import documented
from support.gateway import internal
from support.rows import make_project

FORMS = documented()
LARGE = 100_000
CONVERSATION = [
    {"role": "system", "content": "You write code."},
    {"role": "user", "content": "Begin."},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Look first.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "nothing"},
    {"role": "user", "content": "A person says: be quick."},
]


def of_kind(*kinds):
    # The platform's own calls have no parallel_tool_calls: another test sends one.
    rules = [
        (family, rule)
        for family, rule in FORMS
        if rule["kind"] in kinds and rule["example"].get("parameter") != "parallel_tool_calls"
    ]
    return pytest.mark.parametrize(
        "rule", [rule for _, rule in rules], ids=[f"{family}-{rule['kind']}" for family, rule in rules]
    )


def refusal(rule):
    example = rule["example"]
    error = {"message": example["message"], "type": example["code"], "code": example["code"] or None, "param": None}
    return web.json_response({"error": error}, status=example["status"])


def alternates(messages):
    turns = [message["role"] for message in messages if message["role"] != "system"]
    allowed = {"user": {None, "assistant"}, "assistant": {"user", "tool"}, "tool": {"assistant", "tool"}}
    return all(before in allowed[role] for before, role in zip([None, *turns], turns, strict=False))


def refuses(rule, body):
    """Whether an engine of this kind refuses the body."""
    parameter = rule["example"].get("parameter")
    match rule["kind"]:
        case "parameter":
            return parameter in body or any(parameter in message for message in body["messages"])
        case "output_too_large":
            return body.get("max_tokens", 0) > rule["example"]["limit"]
        case "role_order":
            return not alternates(body["messages"])
    return True


@pytest.fixture
def ask(client, project, model_request):
    async def ask(step, messages=CONVERSATION, **fields):
        return await client.complete(
            model_request(
                identity=CallIdentity(project, step), messages=messages, max_tokens=LARGE, temperature=0.2, **fields
            )
        )

    return ask


def plays(engine, rule):
    async def handler(request):
        if refuses(rule, engine.requests[-1]):
            return refusal(rule)
        return await engine.plain(request)

    engine.handler = handler


@of_kind("parameter", "output_too_large", "role_order")
async def test_a_call_is_sent_in_the_form_that_the_engine_takes_and_the_form_is_kept(engine, ask, rule):
    plays(engine, rule)
    assert (await ask("first")).text
    tries = len(engine.requests)
    assert tries >= 2
    longer = [*CONVERSATION, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]
    assert (await ask("second", longer)).text
    assert len(engine.requests) == tries + 1 or "context" in rule["words"]
    first, second = engine.requests[tries - 1]["messages"], engine.requests[-1]["messages"]
    assert json.dumps(second).startswith(json.dumps(first)[:-1]), "the conversation must stay byte-stable"


async def test_a_bridge_stands_only_where_the_engine_refuses_two_turns(engine, ask):
    rule = next(rule for family, rule in FORMS if family == "mistral" and rule["kind"] == "role_order")
    plays(engine, rule)
    await ask("step")
    roles = [message["role"] for message in engine.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert engine.requests[-1]["messages"][4]["content"] == BRIDGE


async def test_another_callers_field_that_the_engine_does_not_know_is_left_out(http, gateway, engine, project):
    rule = next(rule for _, rule in FORMS if rule["example"].get("parameter") == "parallel_tool_calls")
    plays(engine, rule)
    body = {"model": "standard", "messages": [{"role": "user", "content": "hi"}], "parallel_tool_calls": False}
    async with http.post(f"{gateway}/v1/chat/completions", json=body, headers=internal(project)) as response:
        assert response.status == 200
    assert "parallel_tool_calls" not in engine.requests[-1]


CODES = {
    "context_too_long": "context_too_long",
    "content_filter": "content_filtered",
    "model_not_found": "model_refused",
    "tools_unsupported": "model_refused",
}


@of_kind(*CODES)
async def test_what_no_other_form_helps_is_refused_with_its_reason(engine, ask, rule):
    plays(engine, rule)
    with pytest.raises(ModelRejected) as caught:
        await ask("step")
    assert caught.value.code == CODES[rule["kind"]]
    assert rule["example"]["message"][:40] in caught.value.message
    assert caught.value.details.get("limit") == rule["example"].get("limit")
    assert len(engine.requests) == 1


@of_kind("account", "busy", "invalid_tool_call")
async def test_what_may_pass_can_be_tried_again(engine, ask, rule):
    plays(engine, rule)
    with pytest.raises(ModelUnavailable) as caught:
        await ask("step")
    assert (caught.value.code == "model_account") == (rule["kind"] == "account")
    assert len(engine.requests) == 1


@of_kind("context_too_long", "account", "busy", "content_filter")
async def test_a_refusal_inside_a_stream_means_the_same(engine, ask, rule):
    example = rule["example"]

    async def handler(request):
        response = await engine.open_stream(request)
        # The order of the keys, and an empty first event, as engines send them.
        await response.write(b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n')
        event = {
            "id": "x",
            "error": {"code": example["status"], "type": example["code"], "message": example["message"]},
        }
        await response.write(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
        await response.write_eof()
        return response

    engine.handler = handler
    with pytest.raises((ModelRejected, ModelUnavailable)) as caught:
        await ask("step")
    expected = CODES.get(rule["kind"], "model_account" if rule["kind"] == "account" else "model_unavailable")
    assert caught.value.code == expected
    assert example["message"][:40] in caught.value.message


async def test_an_engine_that_refuses_every_form_is_asked_a_bounded_number_of_times(engine, ask):
    async def handler(_):
        return web.json_response({"error": {"message": "Conversation roles must alternate"}}, status=400)

    engine.handler = handler
    with pytest.raises(ModelRejected, match="roles must alternate"):
        await ask("step")
    assert len(engine.requests) <= 9


async def test_what_one_project_makes_an_engine_refuse_changes_no_other_projects_calls(
    engine, client, ask, database, model_request
):
    rule = next(rule for _, rule in FORMS if rule["example"].get("parameter") == "temperature")
    plays(engine, rule)
    await ask("first")
    assert "temperature" not in engine.requests[-1]
    engine.handler = engine.plain
    identity = CallIdentity(await make_project(database), "other")
    await client.complete(model_request(identity=identity, temperature=0.2))
    assert engine.requests[-1]["temperature"] == 0.2


def test_forms_are_bounded():
    forms = EngineForms()
    for number in range(MAX_FORMS + 5):
        forms.keep("p", "http://engine", f"model-{number}", EngineForm(bridged=True))
    assert forms.of("p", "http://engine", "model-0").plain
    assert forms.of("p", "http://engine", f"model-{MAX_FORMS}").bridged
    assert len(forms._forms) == MAX_FORMS
