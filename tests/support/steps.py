"""Steps of a thread without a workflow and without a model: a test stores the model's answer itself."""

import json
from contextlib import AsyncExitStack
from typing import Any

import sqlalchemy as sa

from journeyman.agents.context import assistant_message
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.models import Event
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.kit.settings import Settings
from journeyman.platform.leases.admission import Capacity, machine_memory
from journeyman.platform.leases.service import Leases
from journeyman.platform.memory.service import memory_service
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from journeyman.workflows.activities.checkpointing import Checkpointer
from journeyman.workflows.activities.execution import Execution, ToolCallExecutor
from journeyman.workflows.activities.loaded_step import LoadedStep, answer_key, load_step
from journeyman.workflows.activities.thread_sandbox import ThreadSandboxes
from journeyman.workflows.activities.tool_calls import parse_calls
from journeyman.workflows.types import Step, StepOutcome, TaskRef, ThreadRef
from support.rows import make_task, make_thread


def shell(command: str, **arguments: Any) -> dict[str, Any]:
    return {"name": "shell", "arguments": {"command": command, **arguments}}


class StepBench:
    """Executor and checkpointer on real stores and real sandboxes."""

    def __init__(
        self, database: Database, store: S3ObjectStore, driver: LocalSandboxDriver, stack: AsyncExitStack
    ) -> None:
        self.database = database
        self.driver = driver
        snapshots = SnapshotStore(store)
        self.leases = Leases(database, driver, snapshots, Capacity(machine_memory()))
        self.sandboxes = ThreadSandboxes(self.leases, snapshots)
        # Connects at the first recall, which no test makes.
        memory = memory_service(Settings(), database, stack)
        self.executor = ToolCallExecutor(database, store, self.sandboxes, memory)
        self.checkpointer = Checkpointer(database, self.sandboxes)

    async def thread(self, role: str = "coder") -> ThreadRef:
        """An empty thread of a new task."""
        task_id = await make_task(self.database, state="running")
        thread_id = await make_thread(self.database, task_id, role=role)
        async with self.database.transaction() as session:
            thread = await threads.get_thread(session, thread_id)
        task = TaskRef(task_id=task_id, project_id=thread.project_id)
        return ThreadRef(task=task, thread_id=thread_id, role=role, revision=1, subtask_id=thread.subtask_id)

    async def answered(self, ref: ThreadRef, *calls: dict[str, Any], number: int = 0) -> Step:
        """A step whose answer with these calls is stored."""
        step = Step(thread=ref, number=number)
        written = [
            {"id": f"c{place}", "name": call["name"], "arguments": json.dumps(call["arguments"])}
            for place, call in enumerate(calls)
        ]
        async with self.database.transaction() as session:
            await threads.append_message(session, ref.thread_id, answer_key(step), assistant_message("", written))
        return step

    async def load(self, step: Step) -> LoadedStep:
        return await load_step(self.database, step)

    async def execute(self, step: Step) -> tuple[LoadedStep, Execution]:
        """Execute the step's calls as one attempt does, up to its checkpoint."""
        loaded = await self.load(step)
        return loaded, await self.executor.execute_tool_calls(loaded, parse_calls(loaded))

    async def run(self, step: Step) -> StepOutcome:
        """One whole attempt at the step."""
        return await self.checkpointer.make_checkpoint(*await self.execute(step))

    async def results(self, step: Step) -> list[str]:
        """The texts of the step's stored results, in order."""
        stored = await self.load(step)
        return [str(body["content"]) for key, body in sorted(stored.stored.items()) if key.endswith(":result")]

    async def events(self, ref: ThreadRef, type_: str) -> list[Event]:
        async with self.database.transaction() as session:
            query = sa.select(Event).where(Event.task_id == ref.task.task_id, Event.type == type_).order_by(Event.seq)
            return list(await session.scalars(query))

    async def checkpoints(self, ref: ThreadRef) -> int:
        async with self.database.transaction() as session:
            query = sa.select(sa.func.count()).where(Checkpoint.task_id == ref.task.task_id)
            return await session.scalar(query) or 0

    async def row(self, ref: ThreadRef) -> Thread:
        async with self.database.transaction() as session:
            return await threads.get_thread(session, ref.thread_id)
