import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from journeyman.platform.inference.client import OpenAIModelEngine
from journeyman.platform.inference.errors import ModelRejected, ModelUnavailable
from journeyman.platform.replay.app import create_replay_app
from journeyman.platform.replay.catalog import ReplayCatalog
from journeyman.platform.replay.conversation import Conversation

TASK = "Repair the package.\nRound: 9\nIt says </task> somewhere."


def script(turns, **more):
    return {"name": "test", "instruction": TASK, "threads": [{"role": "coder", "turns": turns}], **more}


def conversation(*answers, role="Coder", instruction=TASK, header="Subtask: s1", last="go on"):
    messages = [
        {"role": "system", "content": f"You are the {role} of Journeyman.\nBe good."},
        {"role": "user", "content": f"<task>\n{instruction}\n</task>\n\n## Environment\n- Network: none\n\n{header}"},
    ]
    for number, text in enumerate(answers):
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": last})
    return messages


@pytest.fixture
def scripts(tmp_path):
    def write(content, name="a.json"):
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return write


@pytest.fixture
async def play(tmp_path, serve_app, model_request):
    url = await serve_app(create_replay_app(ReplayCatalog([tmp_path])))
    client = OpenAIModelEngine(f"{url}/v1", "none")

    async def ask(messages, **more):
        return await client.complete(model_request(messages=messages, **more))

    ask.url = url
    yield ask
    await client.close()


async def test_turns_follow_from_the_messages(scripts, play):
    call = {"name": "shell", "arguments": {"command": "pytest -q ü"}}
    scripts(script([{"text": "One.", "reasoning": "Think.", "tool_calls": [call, call]}, {"text": "Two."}]))
    answer = await play(conversation())
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("One.", "Think.", "tool_calls")
    assert [json.loads(c.arguments) for c in answer.tool_calls] == [{"command": "pytest -q ü"}] * 2
    assert len({c.id for c in answer.tool_calls}) == 2
    again = await play(conversation())
    assert again.tool_calls == answer.tool_calls
    assert (await play(conversation("One."))).text == "Two."


async def test_usage_is_plausible(scripts, play):
    scripts(script([{"text": "x" * 400}] * 3))
    first = (await play(conversation())).usage
    second = (await play(conversation("x" * 4000))).usage
    assert first.cached_tokens == 0
    assert 100 <= first.completion_tokens <= 101
    assert second.prompt_tokens > first.prompt_tokens + 900
    assert 0 < second.cached_tokens <= first.prompt_tokens
    assert second.cached_tokens % 16 == 0


async def test_raw_arguments_are_sent_as_they_are(scripts, play):
    scripts(script([{"tool_calls": [{"name": "shell", "raw_arguments": '{"command": '}, {"name": "no_such_tool"}]}]))
    answer = await play(conversation())
    assert [(c.name, c.arguments) for c in answer.tool_calls] == [("shell", '{"command": '), ("no_such_tool", "{}")]


async def test_roles_subtasks_rounds_and_revisions(scripts, play):
    threads = [
        {"role": "planner", "turns": [{"text": "plan"}]},
        {"role": "planner", "revision": 2, "turns": [{"text": "plan 2"}]},
        {"role": "coder", "turns": [{"text": "any code"}]},
        {"role": "coder", "subtask": "s2", "turns": [{"text": "code s2"}]},
        {"role": "reviewer", "subtask": "s1", "turns": [{"text": "review s1"}]},
        {"role": "reviewer", "subtask": "s1", "round": 2, "turns": [{"text": "review s1 again"}]},
    ]
    scripts(script([], threads=threads))
    cases = [
        ("Planner", "Revision: 1", "plan"),
        ("Planner", "Revision: 2", "plan 2"),
        ("Coder", "Subtask: s1", "any code"),
        ("Coder", "Subtask: s2", "code s2"),
        ("Reviewer", "Subtask: s1\nTitle: x\nRound: 1", "review s1"),
        ("Reviewer", "Subtask: s1\nTitle: x\nRound: 2\n\nRound: 1", "review s1 again"),
    ]
    for role, header, text in cases:
        assert (await play(conversation(role=role, header=header))).text == text
    with pytest.raises(ModelRejected, match="no thread for role reviewer, subtask s7"):
        await play(conversation(role="Reviewer", header="Subtask: s7"))


async def test_a_compacted_thread_goes_on_where_it_was(scripts, play):
    scripts(script([{"text": "1"}, {"text": "2"}, {"text": "3"}, {"text": "4"}]))
    assert (
        await play(conversation("a", header="Subtask: s1\n\n<summary>\nTurn: 2\nDone: much.\n</summary>"))
    ).text == "4"


async def test_repeated_turns(scripts, play):
    scripts(script([{"text": "same", "repeat": 3}, {"text": "end"}]))
    assert [(await play(conversation(*["x"] * n))).text for n in range(4)] == ["same", "same", "same", "end"]


async def test_a_script_that_lost_touch_fails_loudly(scripts, play):
    scripts(script([{"text": "1"}, {"text": "2", "expect": "1 failed"}, {"text": "3", "expect_regex": r"\d+ passed"}]))
    assert (await play(conversation("a", last="== 1 failed =="))).text == "2"
    assert (await play(conversation("a", "b", last="12 passed"))).text == "3"
    for answers, last in ((["a"], "all passed"), (["a", "b"], "none passed")):
        with pytest.raises(ModelRejected, match=r"422.*lost touch.*passed"):
            await play(conversation(*answers, last=last))


async def test_what_no_script_plays_is_refused_with_the_way_out(scripts, play):
    scripts(script([{"text": "1"}]))
    # A task that a start with a model has left behind waits for the next such start; it is not ended for good.
    with pytest.raises(ModelUnavailable, match="JOURNEYMAN_MODEL_BASE_URL"):
        await play(conversation(instruction="Something else"))
    for messages in (
        conversation("a"),
        [{"role": "user", "content": "Hi"}],
        [],
    ):
        with pytest.raises(ModelRejected, match="JOURNEYMAN_MODEL_BASE_URL") as caught:
            await play(messages)
        assert caught.value.details["status"] == 404


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"kind": "status", "status": 429, "retry_after": 3}, ModelUnavailable),
        ({"kind": "status", "status": 500}, ModelUnavailable),
        ({"kind": "status", "status": 400}, ModelRejected),
        ({"kind": "timeout"}, ModelUnavailable),
        ({"kind": "break_stream", "after_chunks": 3}, ModelUnavailable),
        ({"kind": "break_stream", "after_chunks": 0}, ModelUnavailable),
        ({"kind": "break_stream", "after_chunks": 3, "how": "eof"}, ModelUnavailable),
        ({"kind": "disconnect"}, ModelUnavailable),
        ({"kind": "malformed"}, ModelUnavailable),
    ],
)
async def test_faults_strike_and_pass(scripts, play, fault, error):
    scripts(script([{"text": "word " * 50, "fault": {**fault, "times": 2}}]))
    for _ in range(2):
        with pytest.raises(error) as caught:
            await play(conversation(), idle_timeout_s=0.3)
        if "retry_after" in fault:
            assert caught.value.retry_after_s == 3
    assert (await play(conversation())).text == "word " * 50


async def test_an_empty_answer(scripts, play):
    scripts(script([{"text": "x", "tool_calls": [{"name": "shell"}], "fault": {"kind": "empty"}}]))
    answer = await play(conversation())
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("", (), "stop")


async def test_huge_answers(scripts, play):
    scripts(script([{"text": "0123456789", "text_times": 500_000}]))
    assert len((await play(conversation())).text) == 5_000_000


async def test_in_one_piece_and_listed(scripts, play):
    scripts(script([{"text": "whole", "tool_calls": [{"name": "shell", "arguments": {}}]}]))
    async with httpx.AsyncClient() as http:
        body = {"model": "m", "messages": conversation()}
        answer = (await http.post(f"{play.url}/v1/chat/completions", json=body)).json()
        models = (await http.get(f"{play.url}/v1/models")).json()
        broken = await http.post(f"{play.url}/v1/chat/completions", content=b"{")
    message = answer["choices"][0]["message"]
    assert (message["content"], message["tool_calls"][0]["function"]["name"]) == ("whole", "shell")
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    assert [model["id"] for model in models["data"]] == ["replay"]
    assert broken.status_code == 422
    assert "error" in broken.json()


def test_changed_files_are_read_again(scripts, tmp_path):
    catalog = ReplayCatalog([tmp_path])
    assert not catalog.knows(TASK)
    scripts(script([{"text": "1"}]))
    assert catalog.knows(f"  {TASK}\n")
    assert not catalog.knows(TASK + " more")
    scripts(script([{"text": "1"}], match="prefix"))
    assert catalog.knows(TASK + " more")
    scripts(script([{"text": "1"}], match="regex", instruction=r"Load task \d+"))
    assert catalog.knows("Load task 17")
    scripts("{broken")
    assert not catalog.knows("Load task 17")
    assert "a.json" in catalog.problems[0]
    (tmp_path / "a.json").unlink()
    assert catalog.problems == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"threads": [{"role": "boss", "turns": [{}]}]}, "threads.0.role"),
        ({"threads": [{"role": "coder", "turns": []}]}, "threads.0.turns"),
        ({"threads": [{"role": "coder", "turns": [{"fault": {"kind": "flood"}}]}]}, "threads.0.turns.0.fault"),
        ({"threads": [{"role": "coder", "turns": [{"expect_regex": "("}]}]}, "expect_regex"),
        ({"instruction": "(", "match": "regex"}, "regular expression"),
        ({"extra": 1}, "extra"),
    ],
)
def test_problems_name_the_place(scripts, tmp_path, change, where):
    scripts(script([{"text": "1"}], **change))
    [problem] = ReplayCatalog([tmp_path]).problems
    assert where in problem


def test_bundled_scripts_are_valid():
    catalog = ReplayCatalog.from_settings(type("S", (), {"replay_scripts": None})())
    assert catalog.problems == []
    assert len(catalog.scripts()) >= 3


def test_an_instruction_that_speaks_of_the_tags_is_read_whole():
    found = Conversation.read(conversation())
    assert found is not None
    assert found.instruction == TASK
    assert (found.subtask, found.round, found.turn) == ("s1", None, 0)


def test_content_in_parts():
    messages = conversation()
    messages[1]["content"] = [{"type": "text", "text": messages[1]["content"]}]
    found = Conversation.read(messages)
    assert found is not None
    assert found.instruction == TASK


def test_a_killed_process_plays_on_after_its_restart(scripts, tmp_path):
    """Over real processes: the place in the script is in the request, not in the engine."""
    scripts(script([{"text": "1"}, {"text": "2"}]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "from journeyman.apps.roles.replay_engine import run_replay_engine;"
        "from journeyman.platform.kit.settings import Settings;"
        f"run_replay_engine(Settings(), '127.0.0.1', {port})"
    )
    environment = {**os.environ, "JOURNEYMAN_REPLAY_SCRIPTS": str(tmp_path)}

    def start():
        process = subprocess.Popen([sys.executable, "-c", code], env=environment)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200:
                    return process
            except httpx.TransportError:
                assert process.poll() is None
        raise AssertionError("the replay engine did not start")

    def ask(messages):
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json={"model": "m", "messages": messages})
        return answer.json()["choices"][0]["message"]["content"]

    process = start()
    try:
        assert ask(conversation()) == "1"
        process.kill()
        process.wait()
        process = start()
        assert ask(conversation("1")) == "2"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.wait()
