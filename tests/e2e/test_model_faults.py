"""What models get wrong, and what goes wrong with them: the agent is told, or the call is made again."""

from support.platform import Platform
from support.scripts import approve, call, coder, plan, planner, raw_call, reviewer, shell, simple, work


async def test_broken_arguments_come_back_as_a_tool_error(platform: Platform) -> None:
    outcome = await platform.run(
        simple(
            raw_call("shell", '{"command": "ls'),
            raw_call("shell", '{"command": 5, "colour": "red"}'),
            call("teleport", to="mars"),
            call("submit_plan", subtasks=[], acceptance=[]),
            shell("echo fine"),
        )
    )
    assert outcome.task["state"] == "succeeded"
    texts = [result["text"] for result in outcome.results()]
    coder_texts = texts[1:]
    assert "not a valid JSON object" in coder_texts[0]
    assert "`command`" in coder_texts[1]
    assert "`colour`" in coder_texts[1]
    assert "no tool `teleport`" in coder_texts[2]
    assert "does not have the tool" in coder_texts[3]
    assert coder_texts[4].startswith("fine")


async def test_answers_without_a_tool_call_are_reminded(platform: Platform) -> None:
    outcome = await platform.run(simple({"text": "I think I am done."}, {"text": ""}, shell("echo ok")))
    assert outcome.task["state"] == "succeeded"


async def test_a_coder_that_never_calls_a_tool_is_given_up(platform: Platform) -> None:
    planners = [planner(plan(), revision=revision) for revision in (1, 2, 3)]
    threads = [*planners, coder({"text": "hm", "repeat": 20})]
    outcome = await platform.run(threads)
    assert outcome.task["state"] == "failed"
    assert "stopped calling tools" in outcome.task["failure"]["message"]


async def test_engine_errors_are_retried_and_paid_once(platform: Platform) -> None:
    faults = [
        {"kind": "status", "status": 429, "retry_after": 1, "times": 1},
        {"kind": "status", "status": 500, "times": 2},
        {"kind": "disconnect", "times": 1},
        {"kind": "break_stream", "after_chunks": 2, "times": 1},
    ]
    turns = [
        {**shell(f"echo {n}"), "text": "A few words so that the stream has chunks.", "fault": fault}
        for n, fault in enumerate(faults)
    ]
    outcome = await platform.run(simple(*turns))
    assert outcome.task["state"] == "succeeded"
    assert len(outcome.of("model.failed")) == 5
    assert [result["text"].split()[0] for result in outcome.results("shell")] == ["0", "1", "2", "3"]
    usage = await platform.get(f"/v1/tasks/{outcome.task['id']}/usage")
    assert usage["calls"] - usage["estimated_calls"] == len(outcome.of("model.completed"))


async def test_several_calls_in_one_answer_run_in_order(platform: Platform) -> None:
    turn = {
        "tool_calls": [
            {"name": "write_file", "arguments": {"path": "f", "content": "one\n"}},
            {"name": "edit_file", "arguments": {"path": "f", "old": "one", "new": "two"}},
            {"name": "read_file", "arguments": {"path": "f"}},
        ]
    }
    outcome = await platform.run(simple(turn), acceptance=["grep -qx two f"])
    assert outcome.task["verified"] is True
    assert "two" in outcome.results("read_file")[0]["text"]


async def test_huge_and_strange_output_survives(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder(
            shell("seq 1 400000"),
            {**call("read_output", output_id="out_0_0", start=0, end=20), "expect": "out_0_0"},
            shell(r"printf 'a\x00b\xff\x1b[31mred\x1b[0m\n'"),
            work(),
        ),
        reviewer(approve()),
    ]
    outcome = await platform.run(threads)
    assert outcome.task["state"] == "succeeded"
    long, strange = outcome.results("shell")
    assert long["output_bytes"] > 2_000_000
    assert len(long["text"]) < 40_000
    assert outcome.results("read_output")[0]["text"].endswith("1\n2\n3\n4\n5\n6\n7\n8\n9\n10")
    assert r"a\x00b\xffred" in strange["text"]


async def test_background_commands_go_on_between_calls(platform: Platform) -> None:
    outcome = await platform.run(
        simple(
            shell("python3 -m http.server 8000 --bind 127.0.0.1", background=True),
            shell(
                "for i in $(seq 50); do python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8000\").status)' "
                "2>/dev/null && exit 0; sleep 0.1; done; exit 1"
            ),
        )
    )
    started, asked = outcome.results("shell")
    assert started["running"] is True
    assert asked["text"].startswith("200")


async def test_a_command_that_runs_too_long_is_killed(platform: Platform) -> None:
    outcome = await platform.run(simple(shell("sleep 100 & sleep 100", timeout_s=1)))
    assert outcome.results("shell")[0]["timed_out"] is True
    assert outcome.of("sandbox.limit_hit")[0]["data"]["limit"] == "time"


async def test_a_task_that_no_script_plays_any_more_waits_for_a_model(platform: Platform) -> None:
    """What a start without the model's settings finds: it ends nothing, and goes on once the model is there again."""
    thinking = {**shell("true"), "delay_ms": 1500}
    before = set(platform.scripts.glob("*.json"))
    task_id = await platform.submit(simple(thinking, shell("echo ok > ok")), acceptance=["test -e ok"])
    (script,) = set(platform.scripts.glob("*.json")) - before
    await platform.wait_until_event(task_id, "subtask.started")
    away = script.rename(script.with_suffix(".away"))
    paused = await platform.wait_for(task_id, lambda task: task["paused_reason"] or task["failure"], 60)
    assert paused["paused_reason"] == "model_unavailable", paused["failure"]
    assert "JOURNEYMAN_MODEL_BASE_URL" in str(paused["paused_detail"])
    away.rename(script)
    outcome = await platform.end(task_id, 120)
    assert outcome.task["verified"] is True
    assert [event["data"]["reason"] for event in outcome.of("task.resumed")] == ["model_unavailable"]


async def test_a_refused_call_pauses_the_task_in_the_engines_words(platform: Platform) -> None:
    task_id = await platform.submit(simple({**shell("echo 1"), "fault": {"kind": "status", "status": 400, "times": 1}}))
    paused = await platform.wait_for(task_id, lambda task: task["paused_reason"] or task["finished_at"])
    assert paused["paused_reason"] == "model_refused", paused["failure"]
    assert "HTTP 400" in paused["paused_detail"]["detail"]
    assert (await platform.client.post(f"/v1/tasks/{task_id}/resume")).status_code == 200
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded"


async def test_a_refused_account_is_shown_at_once_and_ends_by_itself(platform: Platform) -> None:
    fault = {"kind": "status", "status": 402, "retry_after": 1, "times": 2}
    outcome = await platform.run(simple({**shell("echo 1"), "fault": fault}))
    assert outcome.task["state"] == "succeeded"
    assert [event["data"]["reason"] for event in outcome.of("task.paused", "task.resumed")] == ["model_account"] * 2
