"""A task's history as its agents would have written it, step by step, straight into the store."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.ledger.pricing import Price, PriceTable
from journeyman.platform.ledger.service import LedgerCall, LedgerService, Reservation
from journeyman.platform.ledger.usage import TokenUsage
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.plans import repository as plans
from journeyman.platform.steering.models import PersonMessage
from journeyman.platform.tasks.contract import TaskProgress, TaskState
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Message, Thread
from support.rows import make_task

TOKENS_PER_STEP = 100
PRICES = PriceTable([Price(match="m", input=Decimal(5000), output=Decimal(0))])
"""Half a dollar a step."""


@dataclass
class Story:
    """Snapshots are plain words unless the test gives digests; each step of a Coder makes a new one."""

    database: Database
    task_id: str
    project_id: str
    epoch: int = 0
    _steps: dict[str, int] = field(default_factory=dict)

    @classmethod
    async def begin(cls, database: Database, project_id: str | None = None, **fields: Any) -> "Story":
        task_id = await make_task(database, project_id)
        async with database.transaction() as session:
            await append(session, task_id, EventType.TASK_CREATED, {})
            task = await lifecycle.transition(session, task_id, TaskState.PREPARING)
            task.initial_snapshot = task.head_snapshot = "initial"
            for name, value in fields.items():
                setattr(task, name, value)
        story = cls(database, task_id, task.project_id)
        await story.state(TaskState.PLANNING)
        return story

    async def state(self, state: TaskState) -> None:
        async with self.database.transaction() as session:
            await lifecycle.transition(session, self.task_id, state)

    async def prepared(self) -> str:
        """The checkpoint after the preparation."""
        async with self.database.transaction() as session:
            return await checkpoints.create(
                session,
                checkpoints.Point(
                    project_id=self.project_id,
                    task_id=self.task_id,
                    thread_id=None,
                    subtask_id=None,
                    plan_revision=0,
                    snapshot="initial",
                    step_key=f"{self.task_id}:prepared",
                ),
            )

    def thread(self, role: str, subtask_id: str | None = None, *, revision: int = 1, attempt: int = 1) -> str:
        return threads.thread_id_for(self.task_id, role, subtask_id, revision, attempt, self.epoch)

    async def open(self, role: str, subtask_id: str | None = None, *, revision: int = 1, attempt: int = 1) -> str:
        """A thread with its system message and its opening."""
        thread_id = self.thread(role, subtask_id, revision=revision, attempt=attempt)
        async with self.database.transaction() as session:
            task = await lock_task(session, self.task_id)
            session.add(
                Thread(
                    id=thread_id,
                    project_id=self.project_id,
                    task_id=self.task_id,
                    role=role,
                    subtask_id=subtask_id,
                    attempt=attempt,
                    revision=revision,
                    base_snapshot=task.head_snapshot,
                    snapshot=task.head_snapshot,
                    segment_start=2,
                    context_tokens=0,
                    last_seq=0,
                    epoch=self.epoch,
                    inbox_seq=0,
                    acted_seq=0,
                )
            )
            await session.flush()
            await threads.append_message(session, thread_id, f"{thread_id}:system", {"role": "system", "content": role})
            opening = {"role": "user", "content": f"Opening of {role} {subtask_id} {revision} {attempt}"}
            await threads.append_message(session, thread_id, f"{thread_id}:opening", opening)
            if role == "coder" and subtask_id is not None:
                row = await plans.get_subtask(session, self.task_id, revision, subtask_id)
                row.state, row.base_snapshot = "running", task.head_snapshot
                data = {"subtask_id": subtask_id, "plan_revision": revision}
                await append(
                    session, self.task_id, EventType.SUBTASK_STARTED, data, thread_id=thread_id, subtask_id=subtask_id
                )
            if role == "reviewer" and subtask_id is not None:
                (await plans.get_subtask(session, self.task_id, revision, subtask_id)).rounds = attempt
        return thread_id

    async def step(
        self,
        thread_id: str,
        tool: str = "shell",
        arguments: str = "{}",
        *,
        submitted: bool = False,
        output: bool = False,
        snapshot: str | None = None,
    ) -> str:
        """An answer with one call, its result, and the checkpoint; returns the checkpoint's id."""
        number = await self.answer(thread_id, tool, arguments)
        key = f"{thread_id}:{number}"
        async with self.database.transaction() as session:
            thread = await threads.get_thread(session, thread_id)
            await append(
                session,
                self.task_id,
                EventType.AGENT_TOOL_RESULT,
                {"call_id": f"{key}:0", "tool": tool, "ok": True, "text": "done"},
                thread_id=thread_id,
                step_key=f"{key}:0:result",
            )
            result = {"role": "tool", "tool_call_id": "call_0", "content": f"result {number}"}
            await threads.append_message(session, thread_id, f"{key}:0:result", result)
            if output:
                await artifacts.add(
                    session,
                    project_id=self.project_id,
                    task_id=self.task_id,
                    kind="tool_output",
                    name=f"out_{number}_0",
                    media_type="application/octet-stream",
                    size=1,
                    digest=f"digest of {number}",
                    key=f"{thread_id}:out_{number}_0",
                )
            if thread.role == "coder":
                thread.snapshot = snapshot or f"{thread.subtask_id}-{self.epoch}-{number}"
            task = await session.get_one(Task, self.task_id)
            if submitted and thread.role == "planner":
                task.plan_revision = thread.revision
            await session.flush()
            return await checkpoints.create(
                session,
                checkpoints.Point(
                    project_id=self.project_id,
                    task_id=self.task_id,
                    thread_id=thread_id,
                    subtask_id=thread.subtask_id,
                    plan_revision=task.plan_revision,
                    snapshot=thread.snapshot or "initial",
                    step_key=key,
                    submitted=submitted,
                ),
            )

    async def answer(self, thread_id: str, tool: str = "shell", arguments: str = "{}") -> int:
        """A model's answer alone, paid for; returns the number of its step."""
        number = self._steps.get(thread_id, 0)
        self._steps[thread_id] = number + 1
        key = f"{thread_id}:{number}:answer"
        wanted = {"id": "call_0", "type": "function", "function": {"name": tool, "arguments": arguments}}
        async with self.database.transaction() as session:
            await append(session, self.task_id, EventType.MODEL_COMPLETED, {}, thread_id=thread_id)
            answer = {"role": "assistant", "content": None, "tool_calls": [wanted]}
            await threads.append_message(session, thread_id, key, answer)
        ledger = LedgerService(self.database, PRICES)
        call = LedgerCall(self.project_id, key, 1, "model", "m", TOKENS_PER_STEP, 0, self.task_id, thread_id)
        reserved = await ledger.reserve(call)
        assert isinstance(reserved, Reservation)
        await ledger.settle(reserved, TokenUsage(prompt_tokens=TOKENS_PER_STEP, completion_tokens=0))
        return number

    async def plan(self, planner: str, *subtasks: str, revision: int = 1) -> str:
        """The Planner hands over a plan of these subtasks."""
        entries = [
            {"id": one, "title": one, "instructions": one, "depends_on": [], "acceptance": []} for one in subtasks
        ]
        async with self.database.transaction() as session:
            await plans.add_revision(
                session,
                project_id=self.project_id,
                task_id=self.task_id,
                revision=revision,
                subtasks=entries,
                acceptance=[],
                reason=None,
            )
            type_ = EventType.PLAN_PROPOSED if revision == 1 else EventType.PLAN_REVISED
            data = {"revision": revision, "subtasks": entries, "acceptance": []}
            await append(session, self.task_id, type_, data, thread_id=planner)
        checkpoint = await self.step(planner, "submit_plan", submitted=True)
        await self.state(TaskState.RUNNING)
        return checkpoint

    async def work(self, coder: str, summary: str = "Done.", *, snapshot: str | None = None) -> str:
        """The Coder hands its work over."""
        arguments = f'{{"summary": "{summary}"}}'
        return await self.step(coder, "submit_work", arguments, submitted=True, snapshot=snapshot)

    async def review(self, reviewer: str, verdict: str = "approve") -> str:
        """The Reviewer hands its verdict over."""
        return await self.step(reviewer, "submit_review", f'{{"verdict": "{verdict}"}}', submitted=True)

    async def findings(self, coder: str, round_: int = 1) -> None:
        await self.say(coder, f"{coder}:findings:{round_}", f"Findings of round {round_}")

    async def say(self, thread_id: str, step_key: str, text: str) -> None:
        async with self.database.transaction() as session:
            await threads.append_message(session, thread_id, step_key, {"role": "user", "content": text})

    async def end(self, subtask_id: str, *, completed: bool = True, revision: int = 1) -> None:
        """The subtask is done and in the head, or given up."""
        coder = self.thread("coder", subtask_id, revision=revision)
        async with self.database.transaction() as session:
            task = await lock_task(session, self.task_id)
            thread = await threads.get_thread(session, coder)
            row = await plans.get_subtask(session, self.task_id, revision, subtask_id)
            row.state = "completed" if completed else "failed"
            row.snapshot = thread.snapshot
            row.summary = "Set by a test, to be replaced."
            if completed:
                task.head_snapshot = thread.snapshot
            await append(
                session,
                self.task_id,
                EventType.SUBTASK_COMPLETED if completed else EventType.SUBTASK_FAILED,
                {"subtask_id": subtask_id, "rounds": row.rounds, "snapshot": thread.snapshot},
                thread_id=coder,
                subtask_id=subtask_id,
            )

    async def one_subtask(self, subtask_id: str = "s1", *, revision: int = 1) -> dict[str, str]:
        """A subtask from its beginning to its approval in the first round; the checkpoints by what made them."""
        made: dict[str, str] = {}
        coder = await self.open("coder", subtask_id, revision=revision)
        made["coder"] = await self.step(coder)
        made["work"] = await self.work(coder)
        reviewer = await self.open("reviewer", subtask_id, revision=revision)
        made["reviewer"] = await self.step(reviewer)
        made["review"] = await self.review(reviewer)
        await self.end(subtask_id, revision=revision)
        return made

    async def person(self, text: str, *, delivered_to: str | None = None) -> int:
        """A message from a person, perhaps already in a thread; returns its number."""
        async with self.database.transaction() as session:
            task = await lock_task(session, self.task_id)
            task.message_count += 1
            number = task.message_count
            session.add(
                PersonMessage(
                    id=new_id("person_message"),
                    project_id=self.project_id,
                    task_id=self.task_id,
                    seq=number,
                    text=text,
                    mode="queue",
                    state="delivered" if delivered_to else "received",
                    author="key",
                    created_at=now(),
                )
            )
            data = {"message_number": number, "text": text}
            await append(session, self.task_id, EventType.MESSAGE_RECEIVED, data)
            if delivered_to:
                thread = await threads.get_thread(session, delivered_to)
                thread.inbox_seq = number
                await append(session, self.task_id, EventType.MESSAGE_DELIVERED, data, thread_id=delivered_to)
                body = {"role": "user", "content": text}
                await threads.append_message(session, delivered_to, f"{delivered_to}:person:{number}", body)
        return number

    def goes_on(self, progress: TaskProgress) -> None:
        """Let the story go on in another epoch, at the steps where the progress says."""
        self.epoch = progress.epoch
        if progress.phase == "plan":
            self._steps[self.thread("planner", revision=progress.revision)] = progress.planner_step
        for subtask in progress.subtasks.values():
            if subtask.coder:
                self._steps[subtask.coder] = subtask.coder_step
            if subtask.reviewer:
                self._steps[subtask.reviewer] = subtask.reviewer_step

    async def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        async with self.database.transaction() as session:
            return await session.get_one(Checkpoint, checkpoint_id)

    async def task(self) -> Task:
        async with self.database.transaction() as session:
            return await session.get_one(Task, self.task_id)

    async def messages(self, thread_id: str) -> list[tuple[str, bytes]]:
        """Step key without the thread's id, and body, of all messages in order."""
        async with self.database.transaction() as session:
            rows = await session.execute(
                sa.select(Message.step_key, Message.body).where(Message.thread_id == thread_id).order_by(Message.seq)
            )
        return [(key.removeprefix(f"{thread_id}:"), body) for key, body in rows]
