"""Independent subtasks at the same time, each in a fork of the workspace; their results merged."""

import pytest

from support.platform import Outcome, Platform
from support.scripts import approve, call, coder, plan, planner, reviewer, shell, subtask, work


def seq(outcome: Outcome, type_: str, subtask_id: str) -> int:
    return next(event["seq"] for event in outcome.of(type_) if event["subtask_id"] == subtask_id)


async def test_independent_subtasks_run_at_once_and_their_work_is_merged(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("a"), subtask("b"), subtask("c", depends_on=["a", "b"]))),
        coder(shell("sleep 2; echo a > a; echo first >> shared"), work(), subtask_id="a"),
        coder(shell("sleep 2; mkdir d; echo b > d/b; chmod +x d/b"), work(), subtask_id="b"),
        coder(shell("cat a d/b shared && echo c > c"), work(), subtask_id="c"),
        *(reviewer(approve(), subtask_id=name) for name in "abc"),
    ]
    outcome = await platform.run(threads, acceptance=["cat a d/b c shared", "test -x d/b"])
    assert outcome.task["verified"] is True, outcome.task["failure"]
    assert seq(outcome, "subtask.started", "b") < seq(outcome, "subtask.completed", "a")
    assert seq(outcome, "subtask.started", "a") < seq(outcome, "subtask.completed", "b")
    assert seq(outcome, "subtask.started", "c") > max(seq(outcome, "subtask.completed", name) for name in "ab")
    assert len(outcome.of("subtask.merged")) == 1
    assert not outcome.of("subtask.conflicted")


async def test_a_conflict_becomes_work_for_a_coder(platform: Platform) -> None:
    resolve = {**shell("grep -c '<<<<<<<' shared; cat shared"), "expect": "/workspace/shared (add/add)"}
    threads = [
        planner(plan(subtask("a"), subtask("b"))),
        coder(shell("echo from a > shared"), work(), subtask_id="a"),
        coder(
            shell("sleep 6; echo from b > shared; echo b > b"),
            work(),
            resolve,
            call("write_file", path="shared", content="from a\nfrom b\n"),
            work(),
            subtask_id="b",
        ),
        reviewer(approve(), subtask_id="a"),
        reviewer(approve(), subtask_id="b", round_=1),
        reviewer({**approve(), "expect": "from b"}, subtask_id="b", round_=2),
    ]
    outcome = await platform.run(
        threads, acceptance=['test "$(cat shared)" = "$(printf \'from a\\nfrom b\')"', "cat b"]
    )
    assert outcome.task["verified"] is True, outcome.task["failure"]
    conflicted = outcome.of("subtask.conflicted")
    assert [event["data"]["conflicts"][0]["path"] for event in conflicted] == ["workspace/shared"]
    shown = next(result for result in outcome.results("shell") if "<<<<<<<" in result["text"])
    assert "from a" in shown["text"]
    assert "from b" in shown["text"]
    assert not outcome.of("sandbox.replaced")


async def test_the_work_of_others_outlives_a_subtask_that_fails(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("a"), subtask("b"))),
        coder({"text": "I give up.", "repeat": 5}, subtask_id="a"),
        coder(shell("sleep 2; echo b > b"), work(), subtask_id="b"),
        reviewer(approve(), subtask_id="b"),
        planner({**plan(subtask("again")), "expect": "b (Subtask b)"}, revision=2),
        coder(shell("cat b && echo a > a"), work(), subtask_id="again"),
        reviewer(approve(), subtask_id="again"),
    ]
    outcome = await platform.run(threads, acceptance=["cat a b"])
    assert outcome.task["verified"] is True, outcome.task["failure"]
    assert [event["subtask_id"] for event in outcome.of("subtask.failed")] == ["a"]


@pytest.mark.slow
async def test_a_limit_that_several_hit_pauses_all_of_them(platform: Platform) -> None:
    names = ["a", "b", "c"]
    threads = [
        planner(plan(*(subtask(name) for name in names))),
        *(coder(*(shell(f"echo {n} >> {name}") for n in range(6)), work(), subtask_id=name) for name in names),
        *(reviewer(approve(), subtask_id=name) for name in names),
    ]
    task_id = await platform.submit(threads, budget={"max_steps": 8}, acceptance=["wc -l a b c | grep -q '18 total'"])
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "budget")
    await platform.wait_until_still(task_id)
    answered = len([event for event in await platform.events(task_id) if event["type"] == "model.completed"])
    assert answered <= 8 + len(names)
    await platform.client.patch(f"/v1/tasks/{task_id}/budget", json={"max_steps": 500})
    outcome = await platform.end(task_id)
    assert outcome.task["verified"] is True, outcome.task["failure"]


async def test_cancelling_ends_all_subtasks(platform: Platform) -> None:
    names = ["a", "b", "c", "d", "e"]
    threads = [
        planner(plan(*(subtask(name) for name in names))),
        *(coder(shell("sleep 120"), work(), subtask_id=name) for name in names),
    ]
    # Several times, because what matters is the moment: between two steps of each of them, or within one.
    for _ in range(4):
        task_id = await platform.submit(threads)
        await platform.wait_until(
            task_id, lambda events: sum(event["type"] == "subtask.started" for event in events) == 4
        )
        await platform.client.post(f"/v1/tasks/{task_id}/cancel")
        outcome = await platform.end(task_id)
        assert outcome.task["state"] == "cancelled"
        assert len(outcome.of("subtask.started")) == 4
