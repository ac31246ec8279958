"""What a step knows beyond its conversation: the task's own past and blackboard, and the project's memory."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents.arguments import PostNote, ReadNotes
from journeyman.agents.board import Board, BoardNote, PlannedSubtask, read_text
from journeyman.platform.board import service as board
from journeyman.platform.board.models import Kind
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.memory.repository import memory_use, notify
from journeyman.platform.memory.service import DEGRADED, Learner, MemoryService, learn
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import for_step
from journeyman.platform.threads.search import ANSWER_HEADING, search_task
from journeyman.workflows.types import Step


@dataclass(frozen=True)
class Knowledge:
    """For one call of a step; ``key`` names the call, whatever attempt carries it out."""

    database: Database
    memory: MemoryService
    step: Step
    key: str

    async def recall(self, query: str) -> str:
        """What was said and done in this task, and what the project knows from earlier ones."""
        thread = self.step.thread
        async with self.database.transaction() as session:
            passages = await search_task(session, thread.task.task_id, query)
        parts: list[str] = []
        if passages:
            said = "\n".join(f"- [{passage.role}, message {passage.seq}] {passage.text}" for passage in passages)
            parts.append(f"{ANSWER_HEADING}\n{said}")
        parts += await self._recall_project(query)
        return "\n\n".join(parts) or "Nothing that fits is known."

    async def _recall_project(self, query: str) -> list[str]:
        """What the project's memory holds, where the task may read it."""
        thread = self.step.thread
        async with self.database.transaction() as session:
            if not (await memory_use(session, await for_step(session, thread.task.task_id))).read:
                return []
        found = await self.memory.recall(thread.task.project_id, query)
        if not found.memories and not found.degraded:
            return []
        async with self.database.transaction() as session:
            event = await append(
                session,
                thread.task.task_id,
                EventType.MEMORY_RECALLED,
                found.facts,
                thread_id=thread.thread_id,
                subtask_id=thread.subtask_id,
                step_key=step_keys.part(self.key, "recalled"),
            )
        if event.new:
            self.memory.used(found)
        parts = []
        if found.degraded:
            parts.append(DEGRADED)
        if found.memories:
            known = "\n".join(f"- {memory.described}" for memory in found.memories)
            parts.append(f"Known from earlier tasks (check before relying on it):\n{known}")
        return parts

    async def remember(self, text: str) -> str:
        """Keep a fact for later tasks of the project."""
        thread = self.step.thread
        learner = Learner(thread.task.project_id, thread.task.task_id, self.key, thread.thread_id, thread.subtask_id)
        async with self.database.transaction() as session:
            learned = await learn(session, learner, text, "fact")
            await notify(session, thread.task.project_id)
        if learned.outcome == "outranked":
            return f"Not kept: a person has corrected that since. What stands is: {learned.instead}"
        if learned.outcome == "confirmed":
            return "The project knew that already; it counts for more now."
        return "Remembered; it can be recalled within seconds."

    async def post_note(self, given: PostNote) -> str:
        """Put a note on the task's blackboard."""
        thread = self.step.thread
        author = board.Author(thread.task.task_id, thread.role, self.key, thread.thread_id, thread.subtask_id)
        async with self.database.transaction() as session:
            note = await board.post(session, author, given.kind, given.text, given.closes)
        closed = "" if note.closes is None else f" It closes promise {note.closes}."
        return f"Note {note.seq} is on the board.{closed}"

    async def read_notes(self, given: ReadNotes) -> str:
        """The blackboard as it is now, or a part of it."""
        async with self.database.transaction() as session:
            task = await for_step(session, self.step.thread.task.task_id)
            whole = given.kind is None and given.after is None
            return read_text(await board_of(session, task, kind=given.kind, after=given.after, with_plan=whole))


async def board_of(
    session: AsyncSession,
    task: Task,
    *,
    kind: Kind | None = None,
    after: int | None = None,
    with_plan: bool = True,
) -> Board:
    """A task's blackboard in the form in which agents read it."""
    notes = tuple(
        BoardNote(
            number=note.seq,
            kind=note.kind,
            text=note.text,
            role=note.role,
            subtask_id=note.subtask_id,
            closes=note.closes,
            closed_by=closed_by,
        )
        for note, closed_by in await board.notes(session, task.id, kind=kind, after=after)
    )
    state = await board.plan_state(session, task.id, task.plan_revision) if with_plan else None
    if state is None:
        return Board(notes=notes)
    titles = {planned["id"]: planned["title"] for planned in state.plan.subtasks}
    plan = tuple(PlannedSubtask(row.subtask_id, titles[row.subtask_id], row.state) for row in state.subtasks)
    return Board(state.plan.revision, plan, notes)
