"""The command line against the running platform: what people do, from submission to the last look."""

import asyncio
import json
from pathlib import Path

from journeyman.platform import demos
from support.command_line import CommandLine
from support.inbox import Inbox
from support.platform import Platform
from support.scripts import approve, coder, plan, planner, reviewer, shell, simple, work


async def test_all_demos_at_once_end_verified(journeyman: CommandLine) -> None:
    for result in await asyncio.gather(*(journeyman("demo", demo.slug) for demo in demos.catalog())):
        assert result.code == 0, result.out + result.err
        assert "✓ task succeeded (every acceptance command passed)" in result.out
        assert "replay engine: scripted answers" in result.out
        assert "✗ failed" not in result.out
        assert "diff --git" in result.out


async def test_a_task_from_submit_to_the_last_look(journeyman: CommandLine, platform: Platform, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "greeting.txt").write_text("hello\n")
    (project / "link").symlink_to("greeting.txt")
    loud = "printf '\\033[31mred\\033[0m \\377\\000\\007 end\\n'; echo world >> greeting.txt"
    instruction = platform.register([planner(plan()), coder(shell(loud), work()), reviewer(approve())])

    result = await journeyman(
        "submit", "-", "-w", str(project), "-a", "grep -q world greeting.txt", "--title", "Greet", "--wait",
        stdin=instruction.encode(),
    )  # fmt: skip
    assert result.code == 0, result.out + result.err
    assert "red \\xff\\x00\\x07 end" in result.out
    assert "\x1b" not in result.out
    assert "\x07" not in result.out
    assert "# uploaded 1 file," in result.err

    (task,) = [entry for entry in json.loads((await journeyman("list", "--json")).out) if entry["title"] == "Greet"]
    task_id = task["id"]
    platform.submitted.append(task_id)
    shown = json.loads((await journeyman("show", task_id, "--json")).out)
    assert shown["verified"] is True
    assert shown["receipts"][0]["passed"] is True
    assert "✓ succeeded" in (await journeyman("show", task_id)).out

    patch = (await journeyman("diff", task_id)).out
    applied = await asyncio.create_subprocess_exec("git", "apply", "-", cwd=project, stdin=asyncio.subprocess.PIPE)
    await applied.communicate(patch.encode())
    assert applied.returncode == 0
    assert (project / "greeting.txt").read_text() == "hello\nworld\n"

    events = [json.loads(line) for line in (await journeyman("watch", task_id, "--json")).out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    history = [json.loads(line) for line in (await journeyman("logs", task_id, "--json")).out.splitlines()]
    assert history == events

    downloaded = await journeyman("artifacts", task_id, "--download", str(tmp_path / "out"))
    assert downloaded.code == 0
    assert (tmp_path / "out" / "changes.patch").read_text() == patch
    assert (await journeyman("cancel", task_id)).out == f"{task_id} is succeeded.\n"


async def test_a_failed_task_is_exit_code_one(journeyman: CommandLine, platform: Platform) -> None:
    instruction = platform.register([planner(plan()), coder(work()), reviewer(approve())])
    result = await journeyman("submit", instruction, "--setup", "echo no luck; false", "--wait")
    assert result.code == 1, result.out + result.err
    assert "✗ failed" in result.out
    assert "no luck" in result.out


async def test_cancelled_from_elsewhere_is_exit_code_four(journeyman: CommandLine, platform: Platform) -> None:
    instruction = platform.register([planner(plan()), coder(shell("sleep 60"), work())])
    task_id = (await journeyman("submit", instruction)).out.strip()
    platform.submitted.append(task_id)
    watching = asyncio.create_task(journeyman("watch", task_id))
    await platform.wait_until_event(task_id, "agent.tool_call")
    assert (await journeyman("cancel", task_id)).code == 0
    result = await watching
    assert result.code == 4
    assert "⊘ cancelled" in result.out


async def test_a_repeated_submit_is_one_task(journeyman: CommandLine, platform: Platform) -> None:
    instruction = platform.register([planner(plan()), coder(work()), reviewer(approve())])
    first, second = [await journeyman("submit", instruction, "--idempotency-key", "e2e-once") for _ in range(2)]
    assert first.code == second.code == 0
    assert first.out == second.out
    platform.submitted.append(first.out.strip())


async def test_a_limit_is_raised_and_the_task_goes_on(journeyman: CommandLine, platform: Platform) -> None:
    steps = [shell(f"echo {number} >> log") for number in range(5)]
    threads = [planner(plan()), coder(*steps, work()), reviewer(approve())]
    task_id = await platform.submit(threads, budget={"max_steps": 3})
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "budget")
    shown = (await journeyman("show", task_id)).out
    assert "waits for a larger budget: 3 of 3 steps used" in shown
    (way_on,) = [line for line in shown.splitlines() if f"journeyman resume {task_id}" in line]
    assert way_on.split()[-2:] == ["--budget-steps", "6"]
    assert (await journeyman("resume", task_id, *way_on.split()[-2:])).code == 0
    await platform.wait_for(task_id, lambda task: (task["paused_detail"] or {}).get("of") == 6)
    result = await journeyman("resume", task_id, "--budget-steps", "50", "--budget-time", "2h")
    assert result.code == 0, result.err
    assert (await platform.end(task_id)).task["state"] == "succeeded"
    refused = await journeyman("pause", task_id)
    assert refused.code == 2
    assert "has ended" in refused.err


async def test_usage_and_budgets(platform: Platform, journeyman: CommandLine) -> None:
    outcome = await platform.run(simple(shell("true")), budget={"max_steps": 90})
    task_id = outcome.task["id"]
    shown = await journeyman("usage", task_id)
    assert shown.code == 0, shown.err
    assert "no price" in shown.out
    line = next(line for line in shown.out.splitlines() if line.startswith("task") and "steps" in line)
    assert line.split()[-2] == "90"
    whole = json.loads((await journeyman("usage", "--json")).out)
    assert [each["level"] for each in whole["budgets"]] == ["project"]
    changed = json.loads((await journeyman("budget", "--tokens", "10000000000", "--period", "month", "--json")).out)
    assert (changed["max_tokens"]["limit"], changed["period"]) == (10**10, "month")
    assert "project (month)" in (await journeyman("budget")).out
    freed = json.loads((await journeyman("budget", "--tokens", "none", "--period", "total", "--json")).out)
    assert (freed["max_tokens"]["limit"], freed["period"], freed["resets_at"]) == (None, "total", None)
    assert (await journeyman("budget", task_id, "--period", "day")).code == 2
    assert (await journeyman("budget", "--tokens", "many")).code == 2
    own = json.loads((await journeyman("budget", task_id, "--json")).out)
    assert (own["level"], own["max_steps"]["limit"]) == ("task", 90)


async def test_a_person_decides_at_the_command_line(
    journeyman: CommandLine, platform: Platform, tmp_path: Path
) -> None:
    threads = [planner(plan()), coder(shell("touch a"), shell("touch b"), work()), reviewer(approve())]
    policy = tmp_path / "policy.json"
    policy.write_text(
        json.dumps({"plan": "always", "rules": [{"tool": "shell", "pattern": "touch *", "require": "always"}]})
    )
    submitted = await journeyman(
        "submit", platform.register(threads), "--accept", "test -e c -a ! -e b", "--approval-policy", f"@{policy}"
    )
    assert submitted.code == 0, submitted.err
    task_id = submitted.out.strip()
    platform.submitted.append(task_id)

    watched = await journeyman("watch", task_id, "--stop-on-pause")
    assert watched.code == 5
    assert "waits for approval: plan, revision 1" in watched.out
    assert f"journeyman plan {task_id}" in watched.out
    shown = await journeyman("plan", task_id, "--json")
    edited = json.loads(shown.out)
    edited["subtasks"][0]["instructions"] = "Do it with care."
    (tmp_path / "plan.json").write_text(json.dumps(edited))
    changed = await journeyman("plan", task_id, "--edit", str(tmp_path / "plan.json"))
    assert changed.code == 0, changed.err
    assert "Plan, revision 2, edited by key_" in changed.out
    assert f"journeyman approve {task_id}" in changed.err
    approved = await journeyman("approve", task_id)
    assert approved.out.endswith("is approved: plan, revision 2\n"), approved.err

    (first,) = await Inbox(platform, task_id).pending()
    listed = await journeyman("approvals", task_id)
    assert first["id"] in listed.out
    assert "$ touch a" in listed.out
    looked = await journeyman("show", task_id)
    assert "waits for approval: $ touch a" in looked.out
    assert f"journeyman approve {first['id']}" in looked.out
    (tmp_path / "call.json").write_text(json.dumps({"command": "touch c"}))
    assert (await journeyman("approve", first["id"], "--edit", str(tmp_path / "call.json"))).code == 0
    await platform.wait_until(task_id, lambda events: sum(e["type"] == "approval.requested" for e in events) == 3)
    (second,) = await Inbox(platform, task_id).pending()
    rejected = await journeyman("reject", second["id"], "--note", "Not needed.")
    assert rejected.out == f"{second['id']} is rejected: $ touch b\n"
    again = await journeyman("approve", second["id"])
    assert again.code == 2
    assert "was rejected by key_" in again.err

    assert (await platform.end(task_id)).task["verified"] is True
    late = await journeyman("approve", task_id)
    assert late.code == 2
    assert "No plan of" in late.err
    everything = json.loads((await journeyman("approvals", task_id, "--all", "--json")).out)
    assert sorted(each["state"] for each in everything) == ["approved", "approved", "rejected"]
