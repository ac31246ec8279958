"""What tasks learn, and what people do about it."""

import asyncio
import json
from typing import Any

import pytest

from support.command_line import CommandLine
from support.platform import Platform
from support.scripts import approve, call, coder, plan, planner, reject, reviewer, shell, simple, subtask, work


async def test_a_person_adds_finds_corrects_and_deletes_on_the_command_line(journeyman: CommandLine) -> None:
    added = await journeyman("memory", "add", "The parcel service wants labels in ZPL.", "--kind", "lesson")
    assert added.code == 0, added.err
    memory_id = added.out.strip()
    found = await until_found(journeyman, "Which format do parcel labels have?", memory_id)
    assert found["degraded"] is False
    edited = await journeyman(
        "memory", "edit", memory_id, "--text", "-", stdin=b"The parcel service wants labels as PDF.\n"
    )
    assert "as PDF" in edited.out
    correction = await journeyman("memory", "add", "The parcel service takes labels as SVG.", "--supersedes", memory_id)
    shown = await journeyman("memory", "show", memory_id)
    assert f"superseded by {correction.out.strip()}" in shown.out
    assert "labels in ZPL" in shown.out, "its history"
    listed = await journeyman("memory", "list", "--origin", "person", "--json")
    assert correction.out.strip() in [memory["id"] for memory in json.loads(listed.out)]
    deleted = await journeyman("memory", "delete", correction.out.strip())
    assert deleted.code == 0
    assert "is deleted" in deleted.out
    assert "fact" in (await journeyman("memory", "list", "--state", "deleted")).out


async def until_found(journeyman: CommandLine, query: str, memory_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            result = await journeyman("memory", "search", query, "--json")
            assert result.code == 0, result.err
            found: dict[str, Any] = json.loads(result.out)
            if memory_id in [memory["id"] for memory in found["data"]]:
                return found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("delete",), "Say what to delete"),
        (("edit", "mem_1"), "nothing to change"),
        (("add", "The key is sk-live-0123456789abcdef."), "looks like a key"),
        (("show", "mem_00000000000000000000000000000000"), "no memory"),
        (("list", "--kind", "rumour"), "kind"),
    ],
)
async def test_wrong_commands_say_what_to_do(journeyman: CommandLine, arguments: tuple[str, ...], said: str) -> None:
    result = await journeyman("memory", *arguments)
    assert result.code == 2
    assert said in result.err


async def test_all_that_a_task_learnt_is_taken_away(platform: Platform, journeyman: CommandLine) -> None:
    outcome = await platform.run(
        simple(call("remember", text="Widgets of type Q7 are hexagonal, as their drawing says."))
    )
    task_id = outcome.task["id"]
    listed = json.loads((await journeyman("memory", "list", "--task", task_id, "--json")).out)
    assert [memory["text"] for memory in listed] == ["Widgets of type Q7 are hexagonal, as their drawing says."]
    deleted = await journeyman("memory", "delete", "--task", task_id)
    assert deleted.out == f"Deleted 1 memory of {task_id}.\n"
    assert json.loads((await journeyman("memory", "list", "--task", task_id, "--json")).out) == []


async def test_a_later_planner_learns_nothing_of_an_earlier_tasks_verification(platform: Platform) -> None:
    command = "test -e Q8-is-hexagonal.txt"
    await platform.run(simple(call("shell", command="touch Q8-is-hexagonal.txt")), acceptance=[command])
    later = await platform.run(
        simple(call("recall", query="test -e Q8-is-hexagonal.txt passes in this project")), record=True
    )
    requests = platform.recorded[later.task["instruction"]]
    sent = "".join(file.read_text() for file in requests.iterdir())
    assert sent
    assert "Q8-is-hexagonal.txt` passes" not in sent
    assert command not in "".join(
        result["text"] for result in later.results("recall") if "Said and done" not in result["text"]
    )
    listed = (await platform.client.get("/v1/memory", params={"limit": 100})).json()["data"]
    assert not any("Q8-is-hexagonal" in memory["text"] for memory in listed)


async def test_lessons_of_reviews_are_kept_after_the_task_has_ended(platform: Platform) -> None:
    threads = [
        planner(plan()),
        coder(work("Done."), shell("touch drilled"), work("Drilled.")),
        reviewer(reject("Widgets of type Q12 need a hole.")),
        reviewer(approve(), round_=2),
    ]
    outcome = await platform.run(threads, acceptance=["test -e drilled"])
    assert outcome.task["verified"] is True
    task_id = outcome.task["id"]
    async with asyncio.timeout(30):
        while True:
            kept = (await platform.client.get("/v1/memory", params={"task_id": task_id})).json()["data"]
            if kept:
                break
            await asyncio.sleep(0.1)
    assert [memory["text"] for memory in kept] == ["A review found: Widgets of type Q12 need a hole."]
    events = await platform.events(task_id)
    assert events[-1]["type"] == "task.completed", "nothing comes after the end"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


async def test_nothing_is_learnt_from_a_failed_verification(platform: Platform) -> None:
    threads = [
        planner(plan(subtask("first"))),
        coder(call("remember", text="Widgets of type Q11 are blue."), work(), subtask_id="first"),
        reviewer(approve(), subtask_id="first"),
        planner({**plan(subtask("second")), "expect": "Q11 lacks its stamp"}, revision=2),
        coder(
            call("remember", text="Q11 lacks its stamp unless one is made."),
            work("Stamped."),
            shell("touch stamp"),
            work("Stamped now."),
            subtask_id="second",
        ),
        reviewer(reject("The stamp of Q11 is made by hand."), subtask_id="second"),
        reviewer(approve(), subtask_id="second", round_=2),
    ]
    command = "test -e stamp || { echo Q11 lacks its stamp; exit 3; }"
    outcome = await platform.run(threads, acceptance=[command])
    assert outcome.task["state"] == "succeeded"
    assert outcome.task["verified"] is True
    kept, refused = outcome.results("remember")
    assert "Remembered" in kept["text"]
    assert "verification has failed" in refused["text"]
    listed = (await platform.client.get("/v1/memory", params={"task_id": outcome.task["id"]})).json()["data"]
    assert [memory["text"] for memory in listed] == ["Widgets of type Q11 are blue."]


async def test_a_task_without_memory_neither_reads_nor_writes_it(platform: Platform) -> None:
    outcome = await platform.run(
        simple(call("remember", text="Widgets of type Q9 are oval."), call("recall", query="Which shape has Q9?")),
        memory={"read": False, "write": False},
    )
    assert "switched off" in outcome.results("remember")[0]["text"]
    assert not outcome.of("memory.recalled", "memory.written")
    assert outcome.task["memory"] == {"read": False, "write": False}


async def test_a_projects_memory_is_switched_off_and_on(platform: Platform) -> None:
    off = await platform.client.patch("/v1/memory/settings", json={"write": False})
    assert off.json() == {"read": True, "write": False}
    try:
        outcome = await platform.run(simple(call("remember", text="Widgets of type Q10 are flat.")))
        assert "switched off" in outcome.results("remember")[0]["text"]
    finally:
        on = await platform.client.patch("/v1/memory/settings", json={"write": True})
    assert on.json() == {"read": True, "write": True}
