"""What reaches the engine: each request begins with the bytes of the one before it, whatever happens in between."""

from itertools import pairwise

from journeyman.apps.embedded.stack import EmbeddedStack
from support.platform import Platform
from support.requests import conversations, shared_prefix
from support.scripts import approve, call, coder, plan, planner, raw_call, reject, reviewer, shell, work
from support.stack import kill_and_wait


async def test_each_request_begins_with_the_bytes_of_the_one_before_it(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    threads = [
        planner(shell("ls"), {**shell("pwd"), "reasoning": "Let me look — ünïcode ☃ first."}, plan()),
        coder(
            {
                **call("write_file", path="a.txt", content='tab\t"quotes" \\ \u2028 ünïcode \U0001f600\n'),
                "text": "First…",
            },
            raw_call("shell", '{"command": "ls'),
            call("teleport", to="mars"),
            {"text": "Only words, no call."},
            shell(r"printf 'a\x00b\xff\x1b[31mred\x1b[0m\n'"),
            {**shell("seq 1 20000"), "fault": {"kind": "break_stream", "after_chunks": 1, "times": 1}},
            {**shell("sleep 3; echo slow"), "text": "The worker dies here."},
            {**shell("echo on"), "reasoning": "It went on."},
            work(),
            shell("echo again > b.txt"),
            work("Now."),
        ),
        reviewer(shell("cat a.txt"), reject("b.txt is missing")),
        reviewer(shell("cat b.txt"), approve(), round_=2),
    ]
    task_id = await platform.submit(threads, record=True)
    await platform.wait_until_call(task_id, "sleep 3")
    for name in ("worker-1", "worker-2"):
        await kill_and_wait(full_stack, name)
    outcome = await platform.end(task_id, 180)
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    found = conversations(platform.requests(outcome.task["instruction"]))
    assert {key[0] for key in found} == {"planner", "coder", "reviewer"}
    assert len(found) == 4
    for key, requests in found.items():
        assert len({request.head for request in requests}) == 1, key
        for former, latter in pairwise(requests):
            assert latter.array.startswith(former.array), key
            assert shared_prefix(former, latter) == len(former.head) + len(former.array)
    heads = {key[0]: requests[0].head for key, requests in found.items()}
    assert all(b'"tools":[' in head for head in heads.values())
    assert len(set(heads.values())) == 3  # each role has its own tools
