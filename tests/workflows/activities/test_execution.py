"""Tool calls are executed once, in order, and what is lost is told."""

from journeyman.workflows.activities.execution import MAY_HAVE_RUN, NOT_BEGUN
from support.steps import StepBench, shell


async def test_all_results_but_the_last_are_stored_before_the_checkpoint(steps: StepBench) -> None:
    step = await steps.answered(await steps.thread(), shell("echo one"), shell("echo two"))
    _, execution = await steps.execute(step)
    assert [text.splitlines()[0] for text in await steps.results(step)] == ["one"]
    assert execution.unstored is not None
    assert execution.unstored.result.text.startswith("two\n")
    assert len(execution.observed) == 2


async def test_a_repeated_attempt_finds_the_command_of_the_first(steps: StepBench) -> None:
    step = await steps.answered(await steps.thread(), shell("echo x >> log; cat log"), shell("cat log"))
    await steps.execute(step)
    _, execution = await steps.execute(step)
    assert execution.unstored is not None
    assert execution.unstored.result.data["reattached"]
    assert execution.unstored.result.text == "x\n\n[exit code 0]"


async def test_an_edit_whose_result_was_not_stored_is_recognized(steps: StepBench) -> None:
    ref = await steps.thread()
    await steps.run(await steps.answered(ref, shell("echo x > f")))
    edit = {"name": "edit_file", "arguments": {"path": "f", "old": "x", "new": "xx"}}
    step = await steps.answered(ref, edit, number=1)
    for _ in range(2):
        _, execution = await steps.execute(step)
        assert execution.unstored is not None
        assert execution.unstored.result.text == "Edited f in 1 place."
        assert execution.sandbox is not None
        assert await execution.sandbox.sandbox.read_file("/workspace/f") == b"xx\n"


async def test_a_step_that_lost_its_sandbox_is_not_carried_on_in_a_new_one(steps: StepBench) -> None:
    ref = await steps.thread()
    await steps.run(await steps.answered(ref, shell("true")))
    step = await steps.answered(ref, shell("echo a > a"), shell("echo b > b"), shell("ls"), number=1)
    _, execution = await steps.execute(step)
    assert execution.sandbox is not None
    lost = execution.sandbox.sandbox.id
    await steps.driver.release(lost)
    loaded, again = await steps.execute(step)
    assert again.unstored is not None
    assert again.unstored.result.text.endswith(NOT_BEGUN)
    assert "The sandbox was lost and replaced" in again.unstored.result.text
    outcome = await steps.checkpointer.make_checkpoint(loaded, again)
    assert not outcome.submitted
    assert (await steps.row(ref)).sandbox_id not in {None, lost}


async def test_a_command_begun_in_a_lost_sandbox_is_not_started_again(steps: StepBench) -> None:
    ref = await steps.thread()
    step = await steps.answered(ref, shell("echo once >> log"))
    _, execution = await steps.execute(step)
    assert execution.sandbox is not None
    await steps.driver.release(execution.sandbox.sandbox.id)
    _, again = await steps.execute(step)
    assert again.unstored is not None
    assert again.unstored.result.text.endswith(MAY_HAVE_RUN)
    assert again.sandbox is not None
    assert await again.sandbox.sandbox.list_files("/workspace") == []


async def test_an_interrupted_step_begins_no_call(steps: StepBench) -> None:
    step = await steps.answered(await steps.thread(), shell("echo never"), shell("echo never"))
    _, execution = await steps.execute(step.model_copy(update={"interrupted": True}))
    assert execution.unstored is not None
    [first] = await steps.results(step)
    assert first.startswith("Not run")
    assert execution.unstored.result.text.startswith("Not run")
    assert execution.unstored.result.data == {"error": "interrupted"}


async def test_bad_arguments_are_a_result_and_need_no_sandbox(steps: StepBench) -> None:
    step = await steps.answered(await steps.thread(), {"name": "shell", "arguments": {"timeout_s": "x"}})
    _, execution = await steps.execute(step)
    assert execution.unstored is not None
    assert not execution.unstored.result.ok
    assert execution.sandbox is None
    # The breaker sees refused calls, too.
    assert [call.tool for call in execution.observed] == ["shell"]
