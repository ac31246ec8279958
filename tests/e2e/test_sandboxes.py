"""Sandboxes that run into their limits or get lost, as the agent and the log see it."""

from typing import Any

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.sandboxes.registry import Record
from support.platform import Outcome, Platform
from support.scripts import call, shell, simple


async def sandbox_of(platform: Platform, task_id: str, role: str = "coder") -> str:
    """The newest sandbox of the role's thread."""
    events = await platform.events(task_id)
    threads = {event["thread_id"] for event in events if event["data"].get("role") == role}
    leased = [
        event["data"]["sandbox_id"]
        for event in events
        if event["type"] in {"sandbox.leased", "sandbox.replaced"} and event["thread_id"] in threads
    ]
    return str(leased[-1])


def ends(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {event["data"]["sandbox_id"]: event["data"] for event in outcome.of("sandbox.released")}


async def test_a_lost_sandbox_is_replaced_and_the_agent_told(platform: Platform, full_stack: EmbeddedStack) -> None:
    server = "python3 -m http.server 8000 --bind 127.0.0.1"
    task_id = await platform.submit(
        simple(
            shell("echo kept > file"),
            shell(server, background=True),
            shell("exit 3", background=True),
            shell("test ! -e other; echo $?; echo gone > other; sleep 20"),
            shell("cat file"),
        ),
        acceptance=["test -f file"],
    )
    await platform.wait_until_call(task_id, "sleep 20")
    lost = await sandbox_of(platform, task_id)
    record = Record.load(full_stack.settings.sandbox_dir / lost)
    assert record is not None
    record.end()
    outcome = await platform.end(task_id)
    assert outcome.task["state"] == "succeeded"
    results = outcome.results("shell")
    assert results[3]["error"] == "sandbox_lost"
    assert "The sandbox was lost and replaced" in results[3]["text"]
    assert f"- {server}\n" in results[3]["text"]
    # The scripted agent does what a real one would: it runs the command again, in what the last checkpoint held.
    assert results[4]["text"].startswith("0\n")
    assert results[5]["text"].startswith("kept\n")
    [replaced] = outcome.of("sandbox.replaced")
    assert replaced["data"]["lost_sandbox_id"] == lost
    leased = {event["data"]["sandbox_id"] for event in outcome.of("sandbox.leased", "sandbox.replaced")}
    assert ends(outcome).keys() == leased
    assert [end["sandbox_id"] for end in ends(outcome).values() if end.get("lost")] == [lost]
    usage = (await platform.client.get(f"/v1/tasks/{task_id}/usage")).json()
    assert abs(usage["sandbox_seconds"] - sum(end["seconds"] for end in ends(outcome).values())) < 0.1


async def test_a_full_disk_comes_back_as_a_result_and_loses_nothing(platform: Platform) -> None:
    outcome = await platform.run(
        simple(
            shell("echo early > early"),
            shell("head -c 200M /dev/zero > big"),
            call("write_file", path="late", content="x" * 10_000),
            shell("rm big; echo late > late"),
        ),
        environment={"resources": {"disk_mb": 48}},
        acceptance=["cat early late"],
    )
    assert outcome.task["verified"] is True
    filled, cleared = outcome.results("shell")[1:]
    assert "No space left" in filled["text"]
    assert "The sandbox's disk is full" in filled["text"]
    [written] = outcome.results("write_file")
    assert written["error"] == "file_no_space"
    assert "nothing was written" in written["text"]
    assert cleared["ok"]
    hits = [event["data"] for event in outcome.of("sandbox.limit_hit")]
    assert [(hit["limit"], hit["call_id"]) for hit in hits] == [
        ("disk", filled["call_id"]),
        ("disk", written["call_id"]),
    ]
    # A checkpoint after every step all the same.
    steps = {event["data"]["call_id"].rpartition(":")[0] for event in outcome.of("agent.tool_result")}
    assert len(outcome.of("checkpoint.created")) >= len(steps)


@pytest.mark.slow
async def test_used_up_processes_are_told_and_a_bomb_ends_with_its_command(platform: Platform) -> None:
    outcome = await platform.run(
        simple(shell(":(){ :|:& }; : & sleep 1"), shell("seq 3 | wc -l; set -- /proc/[0-9]*; echo $#")),
        environment={"resources": {"pids": 64}},
    )
    assert outcome.task["state"] == "succeeded"
    bomb, after = outcome.results("shell")
    assert "ran out of processes" in bomb["text"]
    assert bomb["leftovers"] > 1
    assert int(after["text"].split()[1]) < 8
    assert ("pids", bomb["call_id"]) in [
        (event["data"]["limit"], event["data"]["call_id"]) for event in outcome.of("sandbox.limit_hit")
    ]
