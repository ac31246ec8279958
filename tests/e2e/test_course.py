"""The course of a task: planning, work, review, replanning, verification, hand-over."""

import io
import tarfile

from support.platform import Platform
from support.scripts import approve, call, coder, plan, planner, reject, reviewer, shell, simple, subtask, work


async def test_a_task_reaches_a_verified_end(platform: Platform) -> None:
    outcome = await platform.run(
        simple(call("write_file", path="hello.txt", content="hello\n"), shell("cat hello.txt")),
        acceptance=["grep -q hello hello.txt"],
    )
    assert outcome.task["state"] == "succeeded"
    assert outcome.task["verified"] is True
    states = [event["data"]["to"] for event in outcome.of("task.state_changed")]
    assert states == ["preparing", "planning", "running", "verifying", "succeeded"]
    assert outcome.types[0] == "task.created"
    assert outcome.types[-1] == "task.completed"
    assert outcome.results("shell")[0]["text"].startswith("hello")
    receipts = (await platform.get(f"/v1/tasks/{outcome.task['id']}/receipts"))["data"]
    assert [(receipt["command"], receipt["passed"]) for receipt in receipts] == [("grep -q hello hello.txt", True)]


async def test_without_acceptance_commands_a_task_succeeds_unverified(platform: Platform) -> None:
    outcome = await platform.run(simple(shell("true")))
    assert outcome.task["state"] == "succeeded"
    assert outcome.task["verified"] is False


async def test_commands_of_the_plan_alone_do_not_make_a_task_verified(platform: Platform) -> None:
    threads = [planner(plan(subtask(), acceptance=["true"])), coder(shell("true"), work()), reviewer(approve())]
    outcome = await platform.run(threads)
    assert outcome.task["state"] == "succeeded"
    assert outcome.task["verified"] is False
    assert [event["data"]["by"] for event in outcome.of("acceptance.passed")] == ["plan"]


async def test_requested_changes_go_back_to_the_same_coder(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder(
            shell("echo 1 > n"),
            work(),
            {**shell("echo 2 > n"), "expect": "n must be 2"},
            work("Now it is 2."),
        ),
        reviewer(shell("cat n"), reject("n must be 2")),
        reviewer({**approve(), "expect": "n must be 2"}, round_=2),
    ]
    outcome = await platform.run(threads, acceptance=["grep -qx 2 n"])
    assert outcome.task["state"] == "succeeded"
    assert len(outcome.of("review.changes_requested")) == 1
    assert len(outcome.of("review.approved")) == 1
    threads_of_coder = {
        event["thread_id"] for event in outcome.of("agent.tool_call") if event["data"]["role"] == "coder"
    }
    assert len(threads_of_coder) == 1


async def test_a_reviewer_cannot_change_the_work(platform: Platform) -> None:
    threads = [
        planner(shell("echo planner > planner.txt"), plan()),
        coder(shell("ls; echo right > result"), work()),
        reviewer(shell("echo wrong > result; rm -rf /workspace/*"), approve()),
    ]
    outcome = await platform.run(threads, acceptance=["grep -qx right result", "test ! -e planner.txt"])
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]


async def test_three_rejections_lead_to_a_new_plan(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("first"))),
        coder(
            shell("echo 1 > n"), work(), shell("echo 2 > n"), work(), shell("echo 3 > n"), work(), subtask_id="first"
        ),
        *(reviewer(reject(f"no {n}"), subtask_id="first", round_=n) for n in (1, 2, 3)),
        planner({**plan(subtask("second")), "expect": "no 3"}, revision=2),
        coder(shell("echo ok > ok"), work(), subtask_id="second"),
        reviewer(approve(), subtask_id="second"),
    ]
    outcome = await platform.run(threads, acceptance=["test -e ok"])
    assert outcome.task["state"] == "succeeded"
    assert [event["data"]["subtask_id"] for event in outcome.of("subtask.failed")] == ["first"]
    assert len(outcome.of("plan.proposed")) == 1
    assert len(outcome.of("plan.revised")) == 1


async def test_a_second_rejection_of_unchanged_work_leads_to_a_new_plan(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("first"))),
        coder(shell("true"), work(), work(), subtask_id="first"),
        *(reviewer(reject(f"no {n}"), subtask_id="first", round_=n) for n in (1, 2)),
        planner({**plan(subtask("second")), "expect": "changed nothing"}, revision=2),
        coder(shell("true"), work(), subtask_id="second"),
        reviewer(approve(), subtask_id="second"),
    ]
    outcome = await platform.run(threads)
    assert outcome.task["state"] == "succeeded"


async def test_failed_acceptance_leads_to_a_new_plan_that_sees_the_output(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("first"))),
        coder(shell("true"), work("All done, honestly."), subtask_id="first"),
        reviewer(approve(), subtask_id="first"),
        planner({**plan(subtask("second")), "expect": "the file is missing"}, revision=2),
        coder(shell("touch wanted"), work(), subtask_id="second"),
        reviewer(approve(), subtask_id="second"),
    ]
    outcome = await platform.run(threads, acceptance=["test -e wanted || { echo the file is missing; exit 3; }"])
    assert outcome.task["state"] == "succeeded"
    assert outcome.task["verified"] is True
    assert [event["data"]["exit_code"] for event in outcome.of("acceptance.failed")] == [3]


async def test_subtasks_run_in_the_order_of_the_graph_and_build_on_each_other(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("b", depends_on=["a"]), subtask("a"))),
        coder(shell("echo from-a > a.txt"), work("a is there"), subtask_id="a"),
        reviewer(approve(), subtask_id="a"),
        coder({**shell("cat a.txt > b.txt"), "expect": "a is there"}, work(), subtask_id="b"),
        reviewer(approve(), subtask_id="b"),
    ]
    outcome = await platform.run(threads, acceptance=["grep -q from-a b.txt"])
    assert outcome.task["state"] == "succeeded"
    assert [event["data"]["subtask_id"] for event in outcome.of("subtask.completed")] == ["a", "b"]


async def test_what_is_handed_over(platform: Platform) -> None:
    outcome = await platform.run(
        simple(shell("echo x > made.txt; mkdir -p /artifacts/d; printf '\\x00\\xff' > /artifacts/d/raw.bin")),
        acceptance=["test -s made.txt"],
    )
    listed = (await platform.get(f"/v1/tasks/{outcome.task['id']}/artifacts"))["data"]
    by_name = {artifact["name"]: artifact for artifact in listed}
    assert {"changes.patch", "workspace.tar.gz", "report.md", "d/raw.bin", "acceptance-1-1.log"} <= set(by_name)

    async def content(name: str) -> bytes:
        response = await platform.client.get(f"/v1/artifacts/{by_name[name]['id']}/content")
        response.raise_for_status()
        return response.content

    assert await content("d/raw.bin") == b"\x00\xff"
    assert b"+x\n" in await content("changes.patch")
    with tarfile.open(fileobj=io.BytesIO(await content("workspace.tar.gz"))) as bundle:
        assert any(name.endswith("made.txt") for name in bundle.getnames())


async def test_an_environment_that_does_not_fit_fails_early(platform: Platform) -> None:
    outcome = await platform.run(simple(), environment={"setup": ["echo no such thing >&2; exit 7"]})
    assert outcome.task["state"] == "failed"
    assert outcome.task["failure"]["code"] == "environment_failed"
    assert "no such thing" in outcome.task["failure"]["message"]
    assert outcome.of("environment.failed")
    assert not outcome.of("model.started")


async def test_an_acceptance_command_that_cannot_start_fails_early(platform: Platform) -> None:
    for command in ("no-such-program-here --check", "if then fi"):
        outcome = await platform.run(simple(), acceptance=[command])
        assert outcome.task["failure"]["code"] == "environment_failed", command
        assert not outcome.of("model.started")


async def test_setup_outside_the_workspace_is_there_in_every_sandbox(platform: Platform) -> None:
    threads = [
        planner(shell("cat ~/tool"), plan()),
        coder(shell("cat ~/tool; cat made-by-setup"), work()),
        reviewer(shell("cat ~/tool"), approve()),
    ]
    setup = ["echo ready > ~/tool; echo once >> made-by-setup"]
    outcome = await platform.run(threads, environment={"setup": setup}, acceptance=["grep -q ready ~/tool"])
    assert outcome.task["state"] == "succeeded", outcome.task["failure"]
    assert [result["exit_code"] for result in outcome.results("shell")] == [0, 0, 0]
    assert "once\nonce" not in outcome.results("shell")[1]["text"]
