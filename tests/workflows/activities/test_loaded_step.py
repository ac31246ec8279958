"""What a step begins with."""

import pytest

from journeyman.platform.kit.errors import NotFound
from journeyman.workflows.types import Step
from support.steps import StepBench, shell


async def test_a_new_step_has_no_answer_and_no_sandbox(steps: StepBench) -> None:
    loaded = await steps.load(Step(thread=await steps.thread(), number=0))
    assert loaded.answer is None
    assert (loaded.start.sandbox_id, loaded.start.node) == (None, None)


async def test_an_answered_step_has_its_own_messages_only(steps: StepBench) -> None:
    ref = await steps.thread()
    first = await steps.answered(ref, shell("echo a"))
    await steps.run(first)
    second = await steps.answered(ref, shell("echo b"), number=1)
    loaded = await steps.load(second)
    assert list(loaded.stored) == [f"{second.key}:answer"]
    assert loaded.answer is not None
    assert {*(await steps.load(first)).stored} == {f"{first.key}:answer", f"{first.key}:0:result"}


async def test_the_sandbox_comes_with_its_node(steps: StepBench) -> None:
    ref = await steps.thread()
    step = await steps.answered(ref, shell("true"))
    await steps.run(step)
    start = (await steps.load(step)).start
    assert start.sandbox_id in await steps.driver.list_ids()
    assert start.node == steps.driver.node


async def test_a_step_of_no_thread_is_refused(steps: StepBench) -> None:
    ref = await steps.thread()
    with pytest.raises(NotFound):
        await steps.load(Step(thread=ref.model_copy(update={"thread_id": "thr_none"}), number=0))
