"""Whether a plan needs a person's approval, and what an approval comes to, in the real store."""

from typing import Any

import sqlalchemy as sa
from temporalio.testing import ActivityEnvironment

from journeyman.platform.approvals import service
from journeyman.platform.approvals.schemas import Decide
from journeyman.platform.kit.database import Database
from journeyman.platform.plans import repository as plans
from journeyman.platform.plans.models import Subtask
from journeyman.platform.tasks.models import Task
from journeyman.workflows.activities.approvals import ApprovalActivities, unapproved
from journeyman.workflows.types import PlanVerdict, RequestPlanApproval, TaskApprovals, TaskRef
from support.rows import make_project, make_task

SUBTASK = {"id": "s1", "title": "One", "instructions": "Do it.", "depends_on": [], "acceptance": []}


class Story:
    """A task with a plan, and what happens to it."""

    def __init__(self, database: Database, project_id: str, task_id: str) -> None:
        self.database, self.project_id, self.task_id = database, project_id, task_id
        self._activities = ApprovalActivities(database)
        self.epoch = 0

    @classmethod
    async def begin(cls, database: Database, **policy: Any) -> "Story":
        project_id = await make_project(database)
        task_id = await make_task(database, project_id, state="planning")
        story = cls(database, project_id, task_id)
        await story.change_task(approval_policy=policy)
        await story.propose(1)
        return story

    async def change_task(self, **values: Any) -> None:
        async with self.database.transaction() as session:
            await session.execute(sa.update(Task).where(Task.id == self.task_id).values(values))

    async def propose(self, revision: int, author: str | None = None, *subtasks: dict[str, Any]) -> None:
        async with self.database.transaction() as session:
            await plans.add_revision(
                session,
                project_id=self.project_id,
                task_id=self.task_id,
                revision=revision,
                subtasks=list(subtasks) or [SUBTASK],
                acceptance=[],
                reason=None,
                author=author,
            )

    async def waits(self, revision: int = 1) -> bool:
        async with self.database.transaction() as session:
            return await unapproved(session, await session.get_one(Task, self.task_id), revision)

    async def ask(self, revision: int = 1) -> str:
        task = TaskRef(task_id=self.task_id, project_id=self.project_id, epoch=self.epoch)
        wanted = RequestPlanApproval(task=task, revision=revision)
        environment = ActivityEnvironment()
        first: str = await environment.run(self._activities.request_plan_approval, wanted)
        assert await environment.run(self._activities.request_plan_approval, wanted) == first
        return first

    async def decide(self, approval_id: str, decision: Any, **more: Any) -> PlanVerdict:
        async with self.database.transaction() as session:
            body = Decide(decision=decision, **more)
            await service.decide(session, self.project_id, approval_id, body, by="key_1")
        task = TaskRef(task_id=self.task_id, project_id=self.project_id, epoch=self.epoch)
        waiting = TaskApprovals(task=task, approvals=[approval_id])
        verdict: PlanVerdict = await ActivityEnvironment().run(self._activities.plan_verdict, waiting)
        return verdict


async def test_without_such_a_policy_no_plan_waits(database: Database) -> None:
    assert not await (await Story.begin(database)).waits()
    assert not await (await Story.begin(database, plan="never", tools="always")).waits()


async def test_an_approved_plan_waits_no_more(database: Database) -> None:
    story = await Story.begin(database, plan="always")
    assert await story.waits()
    asked = await story.ask()
    assert await story.waits()
    verdict = await story.decide(asked, "approve")
    assert (verdict.state, verdict.revision, verdict.last_revision) == ("approved", 1, 1)
    assert not await story.waits()
    # The next plan is another question.
    await story.propose(2)
    assert await story.waits(2)


async def test_what_was_approved_is_the_changed_plan(database: Database) -> None:
    story = await Story.begin(database, plan="always")
    asked = await story.ask()
    edited = {"subtasks": [SUBTASK | {"title": "Two"}], "acceptance": []}
    verdict = await story.decide(asked, "approve", edited=edited)
    assert (verdict.state, verdict.revision, verdict.last_revision) == ("approved", 2, 2)
    assert not await story.waits(2)
    assert await story.waits(1)


async def test_a_rejected_plan_tells_the_next_planner_why(database: Database) -> None:
    story = await Story.begin(database, plan="always")
    verdict = await story.decide(await story.ask(), "reject", note="Too large.")
    assert verdict.state == "rejected"
    assert verdict.reason is not None
    assert "Too large." in verdict.reason
    assert "- s1: One" in verdict.reason
    assert await story.waits()


async def test_a_changed_plan_that_breaks_the_planners_rules_is_planned_anew(database: Database) -> None:
    """The API lets none through: this is for the day on which its copy of the rules has fallen behind."""
    story = await Story.begin(database, plan="always")
    await story.propose(2, "key_1", SUBTASK | {"depends_on": ["nothing"]})
    asked = await story.ask(2)
    verdict = await story.decide(asked, "approve")
    assert verdict.state == "rejected"
    assert verdict.reason is not None
    assert "there is no subtask 'nothing'" in verdict.reason


async def test_a_rewind_to_the_plan_asks_again_and_one_into_the_work_does_not(database: Database) -> None:
    story = await Story.begin(database, plan="always")
    first = await story.ask()
    await story.decide(first, "approve")
    story.epoch = 1
    await story.change_task(epoch=1, state="running")
    assert await story.waits()
    assert await story.ask() != first
    async with database.transaction() as session:
        await session.execute(sa.update(Subtask).where(Subtask.task_id == story.task_id).values(state="running"))
    assert not await story.waits()
