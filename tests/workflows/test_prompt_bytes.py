"""The bytes of a request, from messages as agents make them to the body that is sent: longer threads begin with shorter ones."""

import json
import random
from typing import Any

from journeyman.agents import context
from journeyman.agents.roles import Role
from journeyman.agents.tools import tool_schemas
from journeyman.platform.inference.client import request_body
from journeyman.platform.inference.port import CallIdentity, ModelRequest
from journeyman.platform.threads.repository import as_array, encode


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice('ab\n\t"\\é😀\0\x1b\ud800') for _ in range(rng.randrange(12)))


def body(role: Role, messages: list[dict[str, Any]]) -> bytes:
    request = ModelRequest(
        "m",
        as_array(encode(message) for message in [context.system_message(role), *messages]),
        CallIdentity("proj_1", "step"),
        tools=tool_schemas(role),
        max_tokens=10,
    )
    return request_body(request)


def test_a_request_begins_with_the_bytes_of_the_one_before() -> None:
    rng = random.Random(3)
    for role in Role:
        for _ in range(30):
            messages = [context.user_message("<task>\nx\n</task>")]
            former = body(role, messages)
            for turn in range(8):
                call = {"id": f"c{turn}", "name": "shell", "arguments": random_text(rng)}
                calls = [call] if rng.random() < 0.7 else []
                messages.append(context.assistant_message(random_text(rng), calls, random_text(rng)))
                messages += [context.tool_message(call["id"], random_text(rng)) for call in calls]
                if rng.random() < 0.3:
                    messages.append(context.person_message(random_text(rng)))
                current = body(role, messages)
                assert current.startswith(former.removesuffix(b"]}"))
                assert json.loads(current)["messages"][1:] == messages
                former = current


def test_messages_of_both_forms_make_the_same_body() -> None:
    messages = [context.system_message("coder"), context.user_message("ü\u2028")]
    identity = CallIdentity("proj_1", "step")
    sent = [
        json.loads(request_body(ModelRequest("m", form, identity, temperature=0.5)))
        for form in (messages, as_array(encode(message) for message in messages))
    ]
    assert sent[0] == sent[1]
    assert sent[0]["temperature"] == 0.5
    assert "tools" not in sent[0]
