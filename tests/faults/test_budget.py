"""A limit is reached while several subtasks work at once: all of them stop, and none of them loses anything."""

from journeyman.apps.embedded.stack import EmbeddedStack
from support.oracle import check_verified
from support.platform import Platform
from support.scripts import approve, coder, plan, planner, reviewer, shell, subtask, work

NAMES = ("a", "b", "c")
STEPS = 6
LIMIT = 8


async def test_parallel_subtasks_stop_at_the_tasks_limit_and_go_on_with_more(
    platform: Platform, full_stack: EmbeddedStack
) -> None:
    threads = [planner(plan(*(subtask(name) for name in NAMES)))]
    for name in NAMES:
        steps = [{**shell(f"echo {number} >> {name}"), "delay_ms": 300} for number in range(STEPS)]
        threads += [coder(*steps, work(), subtask_id=name), reviewer(approve(), subtask_id=name)]
    wanted = [f'test "$(cat {name})" = "$(seq 0 {STEPS - 1})"' for name in NAMES]
    task_id = await platform.submit(threads, budget={"max_steps": LIMIT}, acceptance=wanted)
    await platform.wait_for(task_id, lambda task: task["paused_reason"] == "budget")
    await platform.wait_until_still(task_id)
    events = await platform.events(task_id)
    answered = sum(event["type"] == "model.completed" for event in events)
    # Never more than the calls that were in flight when the limit was reached.
    assert LIMIT <= answered <= LIMIT + len(NAMES) - 1
    response = await platform.client.patch(f"/v1/tasks/{task_id}/budget", json={"max_steps": 100})
    assert response.status_code == 200
    await check_verified(full_stack, outcome := await platform.end(task_id, 120))
    assert len(outcome.of("task.paused")) == len(outcome.of("task.resumed"))
    assert [event["type"] for event in outcome.of("subtask.failed")] == []
