"""Carrying out the tool calls of one step, and the checkpoint after them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from temporalio import activity

from journeyman.agents import context, loops
from journeyman.agents.arguments import EditFile, Shell, SubmitReview, SubmitWork
from journeyman.agents.canonical import digest
from journeyman.agents.plans import Plan
from journeyman.agents.review import Next, after_review, rejection_reason
from journeyman.agents.roles import Role, profile
from journeyman.agents.tools import ParsedCall, ToolError, parse_call
from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.object_store import ObjectStore, blob_key, put_blob
from journeyman.platform.memory.service import MemoryService, memory_id, write_memory
from journeyman.platform.plans import repository as plans
from journeyman.platform.sandboxes.errors import LOST_WHILE_RUNNING, SandboxLost
from journeyman.platform.tasks.lifecycle import for_step, lock_task
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from journeyman.platform.threads.search import search_task
from journeyman.workflows.activities.tool_runner import ToolResult, ToolRunner
from journeyman.workflows.activities.workplace import Workplace, Workplaces
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import Step, StepOutcome

FINDINGS_REPORT = 4000
"""Characters of a review that travel in the workflow's history, for the report on a subtask that was given up."""

_MAY_HAVE_RUN = (
    f"Error: {LOST_WHILE_RUNNING}. It may have run in part; its effects are lost, and it was not "
    "started again. The files are those after your last completed step. Run it again if it is still needed."
)


class ToolActivities:
    def __init__(self, database: Database, store: ObjectStore, workplaces: Workplaces, memory: MemoryService) -> None:
        self._database = database
        self._store = store
        self._workplaces = workplaces
        self._memory = memory

    @activity.defn
    @beating
    async def run_tools(self, step: Step) -> StepOutcome:
        """Run the step's calls in order, store each result once, then make the step's checkpoint."""
        async with self._database.transaction() as session:
            stored = await threads.messages_of_step(session, step.thread.thread_id, step.key)
            thread = await threads.get_thread(session, step.thread.thread_id)
            task = await for_step(session, step.thread.task.task_id)
        calls = stored[f"{step.key}:answer"].get("tool_calls") or []
        if not calls:
            await self._remind(step)
            return StepOutcome(idle=True)
        batch = _Batch(step, task, thread, done=stored.keys())
        for index, call in enumerate(calls):
            await self._call(batch, index, call)
        return await self._checkpoint(batch)

    async def _remind(self, step: Step) -> None:
        async with self._database.transaction() as session:
            await lock_task(session, step.thread.task.task_id)
            await threads.append_message(
                session, step.thread.thread_id, f"{step.key}:note", context.no_tool_call_note(step.thread.role)
            )

    async def _call(self, batch: "_Batch", index: int, call: dict[str, Any]) -> None:
        step = batch.step
        key = f"{step.key}:{index}"
        written = context.written_arguments(call["function"]["arguments"])
        parsed = parse_call(step.thread.role, call["function"]["name"], written)
        if isinstance(parsed, ParsedCall) and parsed.terminal:
            batch.note_submission(parsed)
        if f"{key}:result" in batch.done:
            return
        if isinstance(parsed, ToolError):
            result = ToolResult(parsed.message, {"error": parsed.code}, ok=False)
        elif parsed.terminal:
            result = ToolResult("Submitted.")
        else:
            result = await self._run(batch, key, parsed)
        if batch.workplace is not None and batch.workplace.replaced and not batch.announced:
            batch.announced = True
            result.text = f"{context.sandbox_replaced_note()['content']}\n\n{result.text}"
        if isinstance(parsed, ParsedCall) and not parsed.terminal:
            batch.observed.append(
                loops.Step(
                    tool=parsed.name,
                    arguments=parsed.digest,
                    result=digest(result.text),
                    new_tokens=step.new_tokens if index == 0 else 0,
                )
            )
        await self._record(batch, key, call, parsed, result)

    async def _run(self, batch: "_Batch", key: str, parsed: ParsedCall) -> ToolResult:
        step = batch.step
        if batch.workplace is None:
            batch.workplace = await self._workplaces.enter(batch.thread, batch.task)
        sandbox = batch.workplace.sandbox
        earlier = None
        if isinstance(parsed.arguments, Shell | EditFile):
            async with self._database.transaction() as session:
                earlier = await threads.begin_tool_call(session, batch.thread, key, sandbox.id)
        if earlier is not None and earlier[0] != sandbox.id:
            return ToolResult(_MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)
        runner = ToolRunner(
            sandbox,
            exec_id=derived_id("command", key),
            output_id=_output_id(key),
            effects=_NotedEffects(self._database, key, earlier[1] if earlier else None),
            fetch_output=lambda output_id: self._fetch_output(step, output_id),
            recall=lambda query: self._recall(step, query),
            remember=lambda text: self._remember(step, key, text),
        )
        try:
            return await runner.run(parsed)
        except SandboxLost:
            # The replacement begins with the last checkpoint; what this call did to the old one is gone with it.
            batch.workplace = await self._workplaces.enter(batch.thread, batch.task)
            return ToolResult(_MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)

    async def _record(
        self, batch: "_Batch", key: str, call: dict[str, Any], parsed: ParsedCall | ToolError, result: ToolResult
    ) -> None:
        """Store the result, its event, and what a submission means, in one transaction."""
        step, thread = batch.step, batch.step.thread
        output_id = None
        blob = ""
        if result.output is not None:
            output_id = _output_id(key)
            blob = await put_blob(self._store, thread.task.project_id, result.output)
        async with self._database.transaction() as session:
            event = await append(
                session,
                thread.task.task_id,
                EventType.AGENT_TOOL_RESULT,
                {
                    "call_id": key,
                    "role": thread.role,
                    "tool": call["function"]["name"],
                    "ok": result.ok,
                    "text": result.text,
                    "output_id": output_id,
                    **result.data,
                },
                thread_id=thread.thread_id,
                subtask_id=thread.subtask_id,
                step_key=f"{key}:result",
            )
            if not event.new:
                return
            await threads.append_message(
                session, thread.thread_id, f"{key}:result", context.tool_message(call["id"], result.text)
            )
            if result.output is not None and output_id is not None:
                await artifacts.add(
                    session,
                    project_id=thread.task.project_id,
                    task_id=thread.task.task_id,
                    kind="tool_output",
                    name=output_id,
                    media_type="application/octet-stream",
                    size=len(result.output),
                    digest=blob,
                    key=f"{thread.thread_id}:{output_id}",
                )
            if batch.workplace is not None and batch.workplace.sandbox.id != batch.thread.sandbox_id:
                await threads.note_sandbox(session, thread.thread_id, batch.workplace.sandbox.id)
            if result.data.get("oom_killed") or result.data.get("timed_out"):
                limit = "memory" if result.data.get("oom_killed") else "time"
                await append(
                    session,
                    thread.task.task_id,
                    EventType.SANDBOX_LIMIT_HIT,
                    {"limit": limit, "call_id": key},
                    thread_id=thread.thread_id,
                    subtask_id=thread.subtask_id,
                )
            if isinstance(parsed, ParsedCall) and parsed.terminal:
                await self._submitted(session, step, parsed)

    async def _submitted(self, session: AsyncSession, step: Step, parsed: ParsedCall) -> None:
        thread = step.thread
        task_id = thread.task.task_id
        match parsed.arguments:
            case Plan() as plan:
                task = await lock_task(session, task_id)
                dumped = plan.model_dump(mode="json")
                await plans.add_revision(
                    session,
                    project_id=thread.task.project_id,
                    task_id=task_id,
                    revision=thread.revision,
                    subtasks=dumped["subtasks"],
                    acceptance=dumped["acceptance"],
                    reason=None,
                )
                task.plan_revision = thread.revision
                await append(
                    session,
                    task_id,
                    EventType.PLAN_PROPOSED if thread.revision == 1 else EventType.PLAN_REVISED,
                    {"revision": thread.revision, **dumped},
                    thread_id=thread.thread_id,
                )
            case SubmitWork() as work:
                assert thread.subtask_id is not None
                subtask = await plans.get_subtask(session, task_id, thread.revision, thread.subtask_id)
                subtask.summary = work.summary
            case SubmitReview() as review:
                approved = review.verdict == "approve"
                await append(
                    session,
                    task_id,
                    EventType.REVIEW_APPROVED if approved else EventType.REVIEW_CHANGES_REQUESTED,
                    {"findings": [finding.model_dump(mode="json") for finding in review.findings]},
                    thread_id=thread.thread_id,
                    subtask_id=thread.subtask_id,
                )
            case _:
                raise TypeError(f"{type(parsed.arguments).__name__} hands nothing over")

    async def _checkpoint(self, batch: "_Batch") -> StepOutcome:
        step, thread, outcome = batch.step, batch.step.thread, batch.outcome
        snapshot = batch.thread.snapshot
        captured = None
        if not profile(thread.role).forks_workspace or snapshot is None:
            # Also when this step ran nothing: what works in the background changes files between steps.
            workplace = batch.workplace or await self._workplaces.enter(batch.thread, batch.task)
            captured = await self._workplaces.capture(workplace)
            snapshot = captured.digest
        async with self._database.transaction() as session:
            await checkpoints.create(
                session,
                project_id=batch.task.project_id,
                task_id=batch.task.id,
                thread_id=thread.thread_id,
                subtask_id=thread.subtask_id,
                plan_revision=batch.plan_revision,
                snapshot=snapshot,
                step_key=step.key,
                submitted=outcome.submitted,
            )
            if captured is not None and captured.changed:
                await self._workplaces.note(session, thread, captured)
            outcome.tripped = await self._watch(session, batch, snapshot)
            if batch.review is not None:
                await self._judge(session, step, batch.review, outcome)
        outcome.snapshot = snapshot
        if outcome.submitted and profile(thread.role).forks_workspace:
            await self._workplaces.leave(batch.thread)
        return outcome

    @staticmethod
    async def _judge(session: AsyncSession, step: Step, review: SubmitReview, outcome: StepOutcome) -> None:
        """Note what follows from the verdict, by the rules of the agents' package."""
        thread = await threads.get_thread(session, step.thread.thread_id)
        changed = True
        if thread.attempt > 1:
            before = await threads.get_thread(
                session,
                threads.thread_id_for(
                    thread.task_id, thread.role, thread.subtask_id, thread.revision, thread.attempt - 1
                ),
            )
            changed = before.base_snapshot != thread.base_snapshot
        decision = after_review(review, round_number=thread.attempt, revision=thread.revision, work_changed=changed)
        outcome.next = decision.next.value
        outcome.reason = decision.reason
        if decision.next in {Next.REPLAN, Next.FAIL}:
            findings = rejection_reason(thread.subtask_id or "", review.findings, thread.attempt)
            outcome.reason = f"{decision.reason}\n{findings}"[:FINDINGS_REPORT]

    @staticmethod
    async def _watch(session: AsyncSession, batch: "_Batch", snapshot: str) -> str | None:
        """Let the circuit breaker see the calls; returns why it trips. A nudge goes into the thread as a note."""
        step = batch.step
        thread = await threads.get_thread(session, step.thread.thread_id)
        window = loops.Window.model_validate(thread.loop_window or {})
        workspace = None if profile(step.thread.role).forks_workspace else snapshot
        for observed in batch.observed:
            window, alarm = loops.observe(window, observed.model_copy(update={"workspace": workspace}))
            if alarm is None:
                continue
            if alarm.level == "trip":
                thread.loop_window = None
                await append(
                    session,
                    step.thread.task.task_id,
                    EventType.CIRCUIT_BREAKER_TRIPPED,
                    {"kind": alarm.kind, "message": alarm.message, "role": step.thread.role},
                    thread_id=thread.id,
                    subtask_id=thread.subtask_id,
                    step_key=f"{step.key}:tripped",
                )
                return alarm.message
            await threads.append_message(session, thread.id, f"{step.key}:nudge", context.user_note(alarm.message))
        thread.loop_window = window.model_dump(mode="json")
        return None

    async def _fetch_output(self, step: Step, output_id: str) -> bytes | None:
        task = step.thread.task
        wanted = derived_id("artifact", task.task_id, "tool_output", f"{step.thread.thread_id}:{output_id}")
        async with self._database.transaction() as session:
            artifact = await artifacts.find(session, task.task_id, wanted)
        return None if artifact is None else await self._store.get(blob_key(task.project_id, artifact.digest))

    async def _recall(self, step: Step, query: str) -> str:
        """What was said and done in this task, and what the project knows from earlier ones."""
        async with self._database.transaction() as session:
            passages = await search_task(session, step.thread.task.task_id, query)
        parts: list[str] = []
        if passages:
            said = "\n".join(f"- [{passage.role}, message {passage.seq}] {passage.text}" for passage in passages)
            parts.append(f"Said and done in this task:\n{said}")
        found = await self._memory.recall(step.thread.task.project_id, query)
        if found.degraded:
            parts.append("The project's memory of earlier tasks does not answer at the moment.")
        elif found.memories:
            known = "\n".join(f"- {memory.text} (from task {memory.task_id})" for memory in found.memories)
            parts.append(f"Known from earlier tasks (check before relying on it):\n{known}")
        return "\n\n".join(parts) or "Nothing that fits is known."

    async def _remember(self, step: Step, key: str, text: str) -> str:
        task = step.thread.task
        async with self._database.transaction() as session:
            event = await append(
                session,
                task.task_id,
                EventType.MEMORY_WRITTEN,
                {"memory_id": memory_id(task.project_id, key), "kind": "fact", "text": text},
                thread_id=step.thread.thread_id,
                subtask_id=step.thread.subtask_id,
                step_key=f"{key}:memory",
            )
            await write_memory(
                session,
                task.project_id,
                text,
                kind="fact",
                step_key=key,
                task_id=task.task_id,
                source_event_id=event.id,
            )
        indexed = await self._memory.try_to_index(task.project_id)
        return "Remembered." if indexed else "Remembered; it can be recalled once the memory index answers again."


@dataclass
class _Batch:
    """One step's calls while they run: where, whether a replaced sandbox was announced, and what they came to.

    The sandbox is entered by the first call that needs one.
    """

    step: Step
    task: Task
    thread: Thread
    done: Collection[str]
    workplace: Workplace | None = None
    announced: bool = False
    observed: list[loops.Step] = field(default_factory=list)
    review: SubmitReview | None = None
    outcome: StepOutcome = field(default_factory=StepOutcome)

    @property
    def plan_revision(self) -> int:
        """The plan that is in force after the step."""
        planned = self.step.thread.role == Role.PLANNER and self.outcome.submitted
        return self.step.thread.revision if planned else self.task.plan_revision

    def note_submission(self, parsed: ParsedCall) -> None:
        self.outcome.submitted = True
        if isinstance(parsed.arguments, SubmitReview):
            self.review = parsed.arguments


class _NotedEffects:
    def __init__(self, database: Database, step_key: str, earlier: str | None) -> None:
        self._database = database
        self._step_key = step_key
        self.earlier = earlier

    async def note(self, digest: str) -> None:
        async with self._database.transaction() as session:
            await threads.note_effect(session, self._step_key, digest)


def _output_id(key: str) -> str:
    """What the agent calls an output: unique in its thread, short, and the same at every attempt."""
    _, number, index = key.rsplit(":", 2)
    return f"out_{number}_{index}"
