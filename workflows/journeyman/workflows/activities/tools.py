"""Carrying out the tool calls of one step, and the checkpoint after them."""

import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession
from temporalio import activity

from journeyman.agents import context, loops
from journeyman.agents.arguments import Shell
from journeyman.agents.canonical import digest
from journeyman.agents.output import cut_output
from journeyman.agents.roles import Role, profile
from journeyman.agents.tools import ParsedCall, ToolError
from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.events.log import Appended, NewEvent, append_all, lock
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.object_store import ObjectStore, blob_key, put_blob
from journeyman.platform.memory.service import MemoryService
from journeyman.platform.sandboxes.errors import ExecNotFound, SandboxLost
from journeyman.platform.tasks.repository import for_step, lock_task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads import steps
from journeyman.platform.threads.commands import background_commands
from journeyman.platform.threads.models import Thread
from journeyman.workflows.activities.approvals import ask_for_calls, asks_for_plans
from journeyman.workflows.activities.batch import MAY_HAVE_RUN, NOT_BEGUN, Batch, Call, Done
from journeyman.workflows.activities.breaker import tell, watch
from journeyman.workflows.activities.knowledge import Knowledge
from journeyman.workflows.activities.models import Fresh
from journeyman.workflows.activities.submissions import judge, record_submission
from journeyman.workflows.activities.tool_runner import ToolResult, ToolRunner
from journeyman.workflows.activities.workplace import Workplace, Workplaces
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import Step, StepOutcome, ThreadRef

_SUBMITTED: Final = "Submitted."
_CUT_SHORT: Final = "[interrupted by a message from a person: the command and all its children were ended]"
_NOT_RUN: Final = "Not run: a message from a person came first. Read it, then decide whether this is still needed."


class ToolActivities:
    def __init__(self, database: Database, store: ObjectStore, workplaces: Workplaces, memory: MemoryService) -> None:
        self._database = database
        self._store = store
        self._workplaces = workplaces
        self._memory = memory

    @activity.defn
    @beating
    async def run_tools(self, step: Step) -> StepOutcome:
        """See :meth:`carry_out`."""
        return await self.carry_out(step)

    async def carry_out(self, step: Step, fresh: Fresh | None = None) -> StepOutcome:
        """Run the step's calls in order, store each result once, then make the step's checkpoint.

        The last result is stored together with the checkpoint. ``fresh`` spares the question what is stored.
        """
        async with self._database.statements() as session:
            if fresh is not None:
                start, stored = fresh.start, {f"{step.key}:answer": fresh.message}
            else:
                start = await steps.begin(
                    session, step.thread.task.task_id, step.thread.thread_id, answer=f"{step.key}:answer"
                )
                stored = await threads.messages_of_step(session, step.thread.thread_id, step.key)
            if step.interrupted and f"{step.key}:answer" not in stored:
                return StepOutcome(unanswered=True)
            batch = Batch(step, start.task, start.thread, done=stored, lease_id=start.sandbox_id)
            calls = batch.read(stored[f"{step.key}:answer"])
            if not batch.task.approval_policy:
                await self._begin_first(session, batch, calls)
        if batch.task.approval_policy:
            waiting = await self._ask(batch, calls)
            if waiting:
                return StepOutcome(waiting=waiting)
            calls = [batch.answered(call) for call in calls]
            async with self._database.statements() as session:
                batch.lease_id = await self._workplaces.held(session, batch.thread)
                await self._begin_first(session, batch, calls)
        if not calls:
            await self._remind(step)
            return StepOutcome(idle=True)
        last: Done | None = None
        for call in calls:
            if last is not None:
                async with self._database.transaction() as session:
                    await self._record(session, batch, last)
            last = await self._call(batch, call)
        return await self._checkpoint(batch, last)

    async def _ask(self, batch: Batch, calls: list[Call]) -> list[str]:
        """Ask people for the calls that the task's policy names; returns what is not decided yet."""
        open_ = [
            (call.key, call.parsed)
            for call in calls
            if isinstance(call.parsed, ParsedCall) and f"{call.key}:result" not in batch.done
        ]
        answers = await ask_for_calls(self._database, batch.step, batch.task, open_)
        batch.answers = answers.by_call
        return answers.pending

    @activity.defn
    @beating
    async def put_away(self, ref: ThreadRef) -> None:
        """Give the thread's sandbox back while its agent waits for people; its files are kept, what runs in it is not."""
        async with self._database.transaction() as session:
            thread = await threads.get_thread(session, ref.thread_id)
            task = await for_step(session, ref.task.task_id)
            lease_id = await self._workplaces.held(session, thread)
        if lease_id is None:
            return
        if not profile(ref.role).forks_workspace:
            workplace = await self._workplaces.enter(thread, task, lease_id)
            captured = await self._workplaces.capture(workplace)
            if captured.changed:
                async with self._database.transaction() as session:
                    await self._workplaces.note(session, ref, captured)
        await self._workplaces.leave(thread)

    async def _remind(self, step: Step) -> None:
        async with self._database.transaction() as session:
            await lock_task(session, step.thread.task.task_id)
            await threads.append_message(
                session, step.thread.thread_id, f"{step.key}:note", context.no_tool_call_note(step.thread.role)
            )

    async def _begin_first(self, session: AsyncSession, batch: Batch, calls: list[Call]) -> None:
        """Note that the first call starts in the thread's sandbox, while a session is open anyway."""
        first = next((call for call in calls if f"{call.key}:result" not in batch.done), None)
        if first is not None and first.begins and batch.lease_id is not None and not batch.step.interrupted:
            batch.begun[first.key] = await threads.begin_tool_call(session, batch.thread, first.key, batch.lease_id)

    async def _call(self, batch: Batch, call: Call) -> Done | None:
        """What the call came to; nothing when an earlier attempt has stored that."""
        parsed = call.parsed
        began = time.perf_counter()
        if f"{call.key}:result" in batch.done:
            if (batch.told(call) or "").endswith(_SUBMITTED):
                batch.note_submission(parsed)
            return None
        if isinstance(parsed, ToolError):
            result = ToolResult(parsed.message, {"error": parsed.code}, ok=False)
        elif batch.step.interrupted:
            result = await self._cut_short(batch, call, parsed)
        elif parsed.terminal and not batch.lost:
            batch.note_submission(parsed)
            result = ToolResult(_SUBMITTED)
        elif call.answer is not None and not call.answer.run:
            result = ToolResult(call.answer.said, {"error": f"approval_{call.answer.state}"}, ok=False)
        else:
            result = await self._run(batch, call, parsed)
        if call.answer is not None:
            result.data.update(call.answer.data)
            if call.answer.run and call.answer.said:
                result.text = f"{call.answer.said}\n{result.text}"
        if batch.workplace is not None and batch.workplace.replaced and not batch.announced:
            batch.announced = True
            result.text = f"{await self._replaced_note(batch.thread)}\n\n{result.text}"
        if isinstance(parsed, ParsedCall) and not parsed.terminal:
            batch.observed.append(
                loops.Step(
                    tool=parsed.name,
                    arguments=loops.spelled(parsed.values),
                    result=digest(result.text),
                    slow=time.perf_counter() - began >= loops.SLOW_S,
                    new_tokens=batch.step.new_tokens if call.index == 0 else 0,
                )
            )
        blob = None
        if result.output is not None:
            blob = await put_blob(self._store, batch.task.project_id, result.output)
        return Done(call, result, blob)

    async def _replaced_note(self, thread: Thread) -> str:
        """What the agent is told of the loss of the sandbox that it knew, with what it had running there."""
        assert thread.sandbox_id is not None
        async with self._database.transaction() as session:
            lost = await background_commands(session, thread.id, thread.sandbox_id)
        return str(context.sandbox_replaced_note(lost)["content"])

    async def _run(self, batch: Batch, call: Call, parsed: ParsedCall) -> ToolResult:
        workplace = await self._enter(batch)
        if batch.is_lost_to(workplace.sandbox.id):
            # To go on in the middle would leave half a step, which nobody asked for.
            return ToolResult(NOT_BEGUN, {"error": "sandbox_lost"}, ok=False)
        earlier = await self._begin(batch, call, workplace.sandbox.id) if call.begins else None
        if earlier is not None and earlier[0] != workplace.sandbox.id:
            batch.lost = True
            return ToolResult(MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)
        step = batch.step
        runner = ToolRunner(
            workplace.sandbox,
            exec_id=derived_id("command", call.key),
            output_id=call.output_id,
            effects=_NotedEffects(self._database, call.key, earlier[1] if earlier else None),
            fetch_output=lambda output_id: self._fetch_output(step, output_id),
            knowledge=Knowledge(self._database, self._memory, step, call.key),
        )
        try:
            return await runner.run(parsed)
        except SandboxLost:
            # The replacement begins with the last checkpoint; what this call did to the old one is gone with it.
            batch.lost = True
            batch.workplace = await self._workplaces.enter(batch.thread, batch.task)
            return ToolResult(MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)

    async def _enter(self, batch: Batch) -> Workplace:
        """The sandbox, entered by the first call that needs one."""
        if batch.workplace is None:
            batch.workplace = await self._workplaces.enter(batch.thread, batch.task, batch.lease_id)
        return batch.workplace

    async def _begin(self, batch: Batch, call: Call, sandbox_id: str) -> tuple[str, str | None] | None:
        """Note that the call starts in this sandbox; of a start at an earlier attempt, its sandbox and noted effect."""
        if call.key not in batch.begun:
            async with self._database.transaction() as session:
                return await threads.begin_tool_call(session, batch.thread, call.key, sandbox_id)
        earlier = batch.begun[call.key]
        if earlier is None and sandbox_id != batch.lease_id:
            # The sandbox that it was to start in turned out to be lost: it has not started.
            async with self._database.transaction() as session:
                await threads.move_tool_call(session, call.key, sandbox_id)
        return earlier

    async def _cut_short(self, batch: Batch, call: Call, parsed: ParsedCall) -> ToolResult:
        """End a command that a person's message interrupted, with its output so far. What was not begun is not begun any more."""
        if not isinstance(parsed.arguments, Shell):
            return ToolResult(_NOT_RUN, {"error": "interrupted"}, ok=False)
        async with self._database.transaction() as session:
            begun_in = await threads.begun_in(session, call.key)
        if begun_in is None:
            return ToolResult(_NOT_RUN, {"error": "interrupted"}, ok=False)
        workplace = await self._enter(batch)
        if workplace.sandbox.id != begun_in:
            return ToolResult(MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)
        exec_id = derived_id("command", call.key)
        try:
            await workplace.sandbox.kill(exec_id)
            output = (await workplace.sandbox.poll(exec_id)).output
        except ExecNotFound:
            return ToolResult(_NOT_RUN, {"error": "interrupted"}, ok=False)
        except SandboxLost:
            batch.workplace = await self._workplaces.enter(batch.thread, batch.task)
            return ToolResult(MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)
        shown = cut_output(output, call.output_id)
        return ToolResult(
            f"{shown.text}\n{_CUT_SHORT}" if shown.text else _CUT_SHORT,
            {"error": "interrupted", "output_bytes": len(output)},
            output=output if shown.truncated else None,
            ok=False,
        )

    @staticmethod
    async def _record(
        session: AsyncSession, batch: Batch, done: Done | None, then: Sequence[NewEvent] = ()
    ) -> list[Appended]:
        """Store the result, its events, and what a submission means; then append what follows from it."""
        step, thread = batch.step, batch.step.thread
        task_id = thread.task.task_id
        await lock(session, task_id)
        events: list[NewEvent] = []
        if done is not None:
            call, result = done.call, done.result
            said = context.tool_message(call.id, result.text)
            _, new = await threads.append_message(session, thread.thread_id, f"{call.key}:result", said)
            if new:
                events = done.events(step)
                if batch.workplace is not None and batch.workplace.sandbox.id != batch.thread.sandbox_id:
                    await threads.note_sandbox(session, thread.thread_id, batch.workplace.sandbox.id)
            if new and done.consequences:
                await append_all(session, task_id, events, locked=True)
                events = []
                if done.blob is not None and result.output is not None:
                    await artifacts.add(
                        session,
                        project_id=thread.task.project_id,
                        task_id=task_id,
                        kind="tool_output",
                        name=call.output_id,
                        media_type="application/octet-stream",
                        size=len(result.output),
                        digest=done.blob,
                        key=f"{thread.thread_id}:{call.output_id}",
                    )
                if isinstance(call.parsed, ParsedCall) and call.parsed.terminal and result.ok:
                    await record_submission(session, step, call.parsed)
        return await append_all(session, task_id, [*events, *then], locked=True)

    async def _checkpoint(self, batch: Batch, last: Done | None) -> StepOutcome:
        step, thread, outcome = batch.step, batch.step.thread, batch.outcome
        snapshot = batch.thread.snapshot
        captured = None
        if not profile(thread.role).forks_workspace or snapshot is None:
            # Also when this step ran nothing: what works in the background changes files between steps.
            captured = await self._workplaces.capture(await self._enter(batch))
            snapshot = captured.digest
        taken = captured if captured is not None and captured.changed else None
        watched = watch(step, batch.thread.loop_window, batch.observed, snapshot)
        point = checkpoints.Point(
            project_id=batch.task.project_id,
            task_id=batch.task.id,
            thread_id=thread.thread_id,
            subtask_id=thread.subtask_id,
            plan_revision=batch.plan_revision,
            snapshot=snapshot,
            step_key=step.key,
            submitted=outcome.submitted,
        )
        async with self._database.transaction() as session:
            *_, event = await self._record(session, batch, last, [point.event()])
            if event.new:
                after = checkpoints.AfterStep(watched.window, None if taken is None else (taken.files, taken.bytes))
                await checkpoints.store(session, point, event.seq, after)
            elif taken is not None:
                await self._workplaces.note(session, thread, taken)
            await tell(session, step, watched.alarms)
            if batch.review is not None:
                await judge(session, step, batch.review, outcome)
        outcome.tripped = watched.tripped
        outcome.snapshot = snapshot
        outcome.unapproved = outcome.submitted and thread.role == Role.PLANNER and asks_for_plans(batch.task)
        if outcome.submitted and profile(thread.role).forks_workspace:
            await self._workplaces.leave(batch.thread)
        return outcome

    async def _fetch_output(self, step: Step, output_id: str) -> bytes | None:
        task = step.thread.task
        wanted = derived_id("artifact", task.task_id, "tool_output", f"{step.thread.thread_id}:{output_id}")
        async with self._database.transaction() as session:
            artifact = await artifacts.find(session, task.task_id, wanted)
        return None if artifact is None else await self._store.get(blob_key(task.project_id, artifact.digest))


class _NotedEffects:
    def __init__(self, database: Database, step_key: str, earlier: str | None) -> None:
        self._database = database
        self._step_key = step_key
        self.earlier = earlier

    async def note(self, digest: str) -> None:
        async with self._database.transaction() as session:
            await threads.note_effect(session, self._step_key, digest)
