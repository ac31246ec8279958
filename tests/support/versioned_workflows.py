"""Two versions of a task's workflow whose histories do not fit each other. Both do each step once, by its key."""

from collections import Counter
from datetime import timedelta
from typing import Final

from temporalio import activity, workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.workflow import ContinueAsNewVersioningBehavior

done: Final[Counter[str]] = Counter()
"""How often the work of each step was really done."""


@activity.defn(name="step")
async def step(key: str) -> None:
    if not done[key]:
        done[key] += 1


async def do(key: str) -> None:
    await workflow.execute_activity("step", key, start_to_close_timeout=timedelta(seconds=10))


class _Child:
    def __init__(self) -> None:
        self._goes_on = False

    @workflow.signal
    def go_on(self) -> None:
        self._goes_on = True

    async def work(self, key: str) -> str:
        await do(key)
        await workflow.wait_condition(lambda: self._goes_on)
        return key


class _Parent:
    def __init__(self) -> None:
        self._notes: list[int] = []

    @workflow.signal
    def note(self, number: int) -> None:
        self._notes.append(number)

    async def child(self) -> None:
        key = workflow.info().workflow_id
        await workflow.execute_child_workflow(
            "SubtaskWorkflow", key, id=f"{key}/child", id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING
        )


@workflow.defn(name="SubtaskWorkflow")
class OldChild(_Child):
    @workflow.run
    async def run(self, key: str) -> str:
        return await self.work(key)


@workflow.defn(name="SubtaskWorkflow")
class NewChild(_Child):
    @workflow.run
    async def run(self, key: str) -> str:
        await workflow.sleep(0.01)
        return await self.work(key)


@workflow.defn(name="TaskWorkflow")
class OldParent(_Parent):
    """Goes on as a new run when it is told ``note`` and there is a newer version."""

    @workflow.run
    async def run(self, notes: list[int]) -> list[object]:
        self._notes += notes
        await self.child()
        await workflow.wait_condition(lambda: len(self._notes) >= 2)
        if workflow.info().is_target_worker_deployment_version_changed():
            workflow.continue_as_new(
                self._notes, initial_versioning_behavior=ContinueAsNewVersioningBehavior.AUTO_UPGRADE
            )
        return ["old", *self._notes]


@workflow.defn(name="TaskWorkflow")
class NewParent(_Parent):
    @workflow.run
    async def run(self, notes: list[int]) -> list[object]:
        self._notes += notes
        await do(f"{workflow.info().workflow_id}:new")
        await self.child()
        await workflow.wait_condition(lambda: len(self._notes) >= 2)
        return ["new", *self._notes]
