"""The checkpoint of a step is made once, with the last result and what follows from it."""

from support.steps import StepBench, shell


async def test_the_checkpoint_stores_the_last_result_and_the_snapshot(steps: StepBench) -> None:
    ref = await steps.thread()
    step = await steps.answered(ref, shell("echo x > f; echo done"))
    outcome = await steps.run(step)
    assert [text.splitlines()[0] for text in await steps.results(step)] == ["done"]
    row = await steps.row(ref)
    assert row.snapshot == outcome.snapshot
    assert row.sandbox_id in await steps.driver.list_ids()
    assert await steps.checkpoints(ref) == 1


async def test_a_repeated_step_makes_no_second_checkpoint(steps: StepBench) -> None:
    ref = await steps.thread()
    step = await steps.answered(ref, shell("echo x > f"))
    first = await steps.run(step)
    assert await steps.run(step) == first
    assert await steps.checkpoints(ref) == 1
    assert len(await steps.events(ref, "checkpoint.created")) == 1
    assert len(await steps.events(ref, "agent.tool_result")) == 1


async def test_two_attempts_that_executed_the_same_call_store_one_result(steps: StepBench) -> None:
    ref = await steps.thread()
    step = await steps.answered(ref, shell("echo x"))
    attempts = [await steps.execute(step) for _ in range(2)]
    for loaded, execution in attempts:
        await steps.checkpointer.make_checkpoint(loaded, execution)
    assert len(await steps.results(step)) == 1
    assert len(await steps.events(ref, "agent.tool_result")) == 1
    assert await steps.checkpoints(ref) == 1


async def test_a_planner_that_submits_gives_its_sandbox_back(steps: StepBench) -> None:
    ref = await steps.thread("planner")
    await steps.run(await steps.answered(ref, shell("ls")))
    assert await steps.driver.list_ids() != []
    subtask = {"id": "s1", "title": "t", "instructions": "i", "depends_on": [], "acceptance": []}
    plan = {"name": "submit_plan", "arguments": {"subtasks": [subtask], "acceptance": []}}
    outcome = await steps.run(await steps.answered(ref, plan, number=1))
    assert (outcome.submitted, outcome.unapproved) == (True, False)
    assert await steps.driver.list_ids() == []
    [event] = await steps.events(ref, "plan.proposed")
    assert event.data["revision"] == 1
