"""Opening threads: the first messages of each role, from the store."""

from collections.abc import Sequence
from typing import Any, Final

from temporalio import activity

from journeyman.agents import context
from journeyman.agents.arguments import Finding, SubmitReview, SubmitWork
from journeyman.agents.board import Board
from journeyman.agents.context import DoneSubtask, TaskBrief
from journeyman.agents.plans import Subtask
from journeyman.agents.roles import Role, profile
from journeyman.agents.tools import ParsedCall, parse_call
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict
from journeyman.platform.memory.embedder import QUERY_CHARACTERS
from journeyman.platform.memory.repository import memory_use
from journeyman.platform.memory.service import DEGRADED, MemoryService
from journeyman.platform.plans import repository as plans
from journeyman.platform.plans.models import Plan
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from journeyman.workflows.activities.knowledge import board_of
from journeyman.workflows.budgets import limits_of
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import DeliverFindings, OpenThread, ThreadRef

RECALLED: Final = 5
QUERY: Final = QUERY_CHARACTERS
"""Characters of the task that are looked up, of a later plan half of them for the reason: what is embedded of a query."""


class ConversationActivities:
    def __init__(self, database: Database, snapshots: SnapshotStore, memory: MemoryService) -> None:
        self._database = database
        self._snapshots = snapshots
        self._memory = memory

    @activity.defn
    @beating
    async def open_thread(self, opening: OpenThread) -> ThreadRef:
        """Create the thread with its system and opening message. A repetition finds the thread of the first."""
        task_id = opening.task.task_id
        thread_id = threads.thread_id_for(
            task_id, opening.role, opening.subtask_id, opening.revision, opening.round, opening.task.epoch
        )
        ref = ThreadRef(
            task=opening.task,
            thread_id=thread_id,
            role=opening.role,
            revision=opening.revision,
            subtask_id=opening.subtask_id,
        )
        async with self._database.transaction() as session:
            thread = await session.get(Thread, thread_id)
            if thread is not None and thread.last_seq >= 2:
                return ref
        message, base = await self._first_message(opening)
        async with self._database.transaction() as session:
            task = await lock_task(session, task_id)
            if await session.get(Thread, thread_id) is not None:
                return ref
            if task.epoch != opening.task.epoch:
                raise Conflict(f"Task {task_id} was rewound; this thread is not opened any more.", code="superseded")
            session.add(
                Thread(
                    id=thread_id,
                    project_id=opening.task.project_id,
                    task_id=task_id,
                    role=opening.role,
                    subtask_id=opening.subtask_id,
                    attempt=opening.round,
                    revision=opening.revision,
                    base_snapshot=base,
                    snapshot=base,
                    segment_start=2,
                    context_tokens=0,
                    last_seq=0,
                    epoch=opening.task.epoch,
                    inbox_seq=0,
                    acted_seq=0,
                )
            )
            await session.flush()
            await threads.append_message(
                session, thread_id, step_keys.part(thread_id, "system"), context.system_message(opening.role)
            )
            await threads.append_message(session, thread_id, step_keys.part(thread_id, "opening"), message)
            if opening.role == Role.CODER and opening.subtask_id is not None:
                await self._start_subtask(session, opening, thread_id, base)
            if opening.role == Role.REVIEWER and opening.subtask_id is not None:
                subtask = await plans.get_subtask(session, task_id, opening.revision, opening.subtask_id)
                subtask.rounds = opening.round
        return ref

    @staticmethod
    async def _start_subtask(session: Any, opening: OpenThread, thread_id: str, base: str | None) -> None:
        assert opening.subtask_id is not None
        subtask = await plans.get_subtask(session, opening.task.task_id, opening.revision, opening.subtask_id)
        subtask.state = "running"
        subtask.base_snapshot = base
        await append(
            session,
            opening.task.task_id,
            EventType.SUBTASK_STARTED,
            {"subtask_id": opening.subtask_id, "plan_revision": opening.revision},
            thread_id=thread_id,
            subtask_id=opening.subtask_id,
            step_key=step_keys.part(thread_id, "start"),
        )

    async def _first_message(self, opening: OpenThread) -> tuple[context.Message, str | None]:
        """The opening message, and the snapshot that the thread's workspace begins with."""
        async with self._database.transaction() as session:
            task = await session.get_one(Task, opening.task.task_id)
            plan = None
            if opening.role != Role.PLANNER:
                plan = await plans.get_plan(session, task.id, opening.revision)
            done = await self._done(session, task, opening)
            board = await board_of(session, task)
        brief = await self._brief(task, opening, board)
        if plan is None:
            message = context.planner_opening(brief, revision=opening.revision, reason=opening.reason or "", done=done)
            return message, task.head_snapshot
        subtask = next(Subtask(**entry) for entry in plan.subtasks if entry["id"] == opening.subtask_id)
        if opening.role == Role.CODER:
            return context.coder_opening(brief, subtask, done=done), task.head_snapshot
        return await self._review(opening, brief, plan, subtask)

    async def _review(
        self, opening: OpenThread, brief: TaskBrief, plan: Plan, subtask: Subtask
    ) -> tuple[context.Message, str | None]:
        task_id = opening.task.task_id
        epoch = opening.task.epoch
        coder_id = threads.thread_id_for(task_id, Role.CODER, opening.subtask_id, plan.revision, 1, epoch)
        former: tuple[Finding, ...] = ()
        async with self._database.transaction() as session:
            coder = await threads.get_thread(session, coder_id)
            work = submission(Role.CODER, await threads.bodies(session, coder_id))
            if opening.round > 1:
                before = threads.thread_id_for(
                    task_id, Role.REVIEWER, opening.subtask_id, plan.revision, opening.round - 1, epoch
                )
                review = submission(Role.REVIEWER, await threads.bodies(session, before))
                former = tuple(review.findings) if isinstance(review, SubmitReview) else ()
        diff = ""
        if coder.base_snapshot is not None and coder.snapshot is not None:
            changes = await self._snapshots.diff(opening.task.project_id, coder.base_snapshot, coder.snapshot)
            diff = "".join(change.patch for change in changes)
        message = context.reviewer_opening(
            brief,
            subtask,
            round_number=opening.round,
            summary=work.summary if isinstance(work, SubmitWork) else "",
            diff=diff,
            former_findings=former,
        )
        return message, coder.snapshot

    @staticmethod
    async def _done(session: Any, task: Task, opening: OpenThread) -> list[DoneSubtask]:
        """Completed subtasks of earlier revisions and, except for a Planner, of this one."""
        before = opening.revision if opening.role == Role.PLANNER else opening.revision + 1
        return [
            DoneSubtask(row.subtask_id, title, row.summary or "")
            for row, title in await plans.done_subtasks(session, task.id, before_revision=before)
        ]

    async def _brief(self, task: Task, opening: OpenThread, board: Board) -> TaskBrief:
        environment = task.environment
        resources = environment.get("resources") or {}
        variables = [*(environment.get("env") or {}), *(environment.get("secrets") or [])]
        known = context.Environment(
            toolset=environment.get("toolset") or "python",
            cpus=resources.get("cpus"),
            memory_mb=resources.get("memory_mb"),
            disk_mb=resources.get("disk_mb"),
            variables=tuple(variables),
            budget=limits_of(task.budget),
        )
        memories: tuple[str, ...] = ()
        if opening.role == Role.PLANNER:
            memories = await self._recall(task, opening)
        return TaskBrief(task.instruction, known, tuple(task.acceptance), memories, board)

    async def _recall(self, task: Task, opening: OpenThread) -> tuple[str, ...]:
        """Memories of the project that fit the task and, for a later plan, the reason why the former one was given up.

        Empty, and without an event, where the task may not read the memory.
        """
        async with self._database.transaction() as session:
            if not (await memory_use(session, task)).read:
                return ()
        query = task.instruction[:QUERY]
        if opening.reason:
            query = f"{query[: QUERY // 2]}\n{opening.reason[: QUERY // 2]}"
        found = await self._memory.recall(task.project_id, query, limit=RECALLED)
        async with self._database.transaction() as session:
            event = await append(
                session,
                task.id,
                EventType.MEMORY_RECALLED,
                found.facts,
                step_key=step_keys.part(task.id, "recalled", opening.revision),
            )
        if event.new:
            self._memory.used(found)
        known = tuple(memory.described for memory in found.memories)
        return (*known, DEGRADED) if found.degraded else known

    @activity.defn
    @beating
    async def deliver_findings(self, findings: DeliverFindings) -> None:
        """Put the Reviewer's findings into the Coder's thread as they are."""
        async with self._database.transaction() as session:
            review = submission(Role.REVIEWER, await threads.bodies(session, findings.reviewer_thread_id))
            given = review.findings if isinstance(review, SubmitReview) else []
            thread_id = findings.thread.thread_id
            await threads.append_message(
                session,
                thread_id,
                step_keys.part(thread_id, "findings", findings.round),
                context.findings_note(findings.round, given),
            )


def submission(role: Role, messages: Sequence[dict[str, Any]]) -> Any:
    """The arguments of the role's last hand-over; None without one."""
    terminal = profile(role).terminal_tool
    for message in reversed(messages):
        for call in message.get("tool_calls") or ():
            if call["function"]["name"] == terminal:
                parsed = parse_call(role, terminal, call["function"]["arguments"])
                if isinstance(parsed, ParsedCall):
                    return parsed.arguments
    return None
