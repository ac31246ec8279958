"""Rows that tests start from."""

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.tasks.models import Task
from journeyman.platform.tenancy.models import Organization, Project
from journeyman.platform.threads.models import Thread


async def make_project(database: Database) -> str:
    """A project in an organization of its own; returns its id."""
    organization_id, project_id = new_id("organization"), new_id("project")
    async with database.transaction() as session:
        session.add(Organization(id=organization_id, name="test"))
        await session.flush()
        session.add(Project(id=project_id, organization_id=organization_id, name="test"))
    return project_id


async def make_task(database: Database, project_id: str | None = None, *, state: str = "queued") -> str:
    """A task with nothing but an instruction; returns its id."""
    project_id = project_id or await make_project(database)
    task_id = new_id("task")
    moment = now()
    async with database.transaction() as session:
        session.add(
            Task(
                id=task_id,
                project_id=project_id,
                title="test",
                instruction="test",
                workspace={"source": "none"},
                environment={},
                acceptance=[],
                agent_profile="default",
                model_tier="standard",
                models={},
                budget={},
                approval_policy={},
                message_count=0,
                epoch=0,
                inherited={},
                labels={},
                state=state,
                waiting_for=[],
                plan_revision=0,
                last_seq=0,
                trace_context={},
                created_at=moment,
                updated_at=moment,
            )
        )
    return task_id


async def make_thread(database: Database, task_id: str, *, role: str = "coder", subtask_id: str | None = "s1") -> str:
    """An empty thread; returns its id."""
    thread_id = new_id("thread")
    async with database.transaction() as session:
        task = await session.get_one(Task, task_id)
        session.add(
            Thread(
                id=thread_id,
                project_id=task.project_id,
                task_id=task_id,
                role=role,
                subtask_id=subtask_id,
                attempt=1,
                revision=1,
                segment_start=2,
                context_tokens=0,
                last_seq=0,
                epoch=0,
                inbox_seq=0,
                acted_seq=0,
            )
        )
    return thread_id
