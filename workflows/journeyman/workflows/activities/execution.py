"""Executing the tool calls of a step, each once and in order."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from journeyman.agents import context, loops
from journeyman.agents.arguments import Shell
from journeyman.agents.canonical import digest
from journeyman.agents.output import cut_output
from journeyman.agents.tools import ParsedCall, ToolError
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.object_store import ObjectStore, put_blob
from journeyman.platform.memory.service import MemoryService
from journeyman.platform.sandboxes.errors import LOST_WHILE_RUNNING, ExecNotFound, SandboxLost
from journeyman.platform.tasks.repository import lock_task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.commands import background_commands
from journeyman.workflows.activities.knowledge import Knowledge
from journeyman.workflows.activities.loaded_step import LoadedStep
from journeyman.workflows.activities.results import store_result
from journeyman.workflows.activities.sandbox_tools import EditJournal, KeptOutputs, SandboxTools
from journeyman.workflows.activities.thread_sandbox import ThreadSandbox, ThreadSandboxes
from journeyman.workflows.activities.tool_calls import ExecutedCall, ToolCall, ToolResult
from journeyman.workflows.types import Step

MAY_HAVE_RUN: Final = (
    f"Error: {LOST_WHILE_RUNNING}. It may have run in part; its effects are lost, and it was not "
    "started again. The files are those after your last completed step. Run it again if it is still needed."
)
NOT_BEGUN: Final = (
    f"Error: {LOST_WHILE_RUNNING} or before it could, and with it what the step's earlier calls did. It was not started. The "
    "files are those after your last completed step. Do the whole step again if it is still needed."
)
_SUBMITTED: Final = "Submitted."
_INTERRUPTED: Final = "[interrupted by a message from a person: the command and all its children were ended]"
_NOT_RUN: Final = "Not run: a message from a person came first. Read it, then decide whether this is still needed."


@dataclass(frozen=True)
class Execution:
    """What the tool calls of a step came to.

    ``unstored``: the last call with its result, which is stored together with the checkpoint; None if an earlier attempt stored
    it. ``sandbox``: the thread's, if a call needed it. ``observed``: what the circuit breaker sees of the calls executed now.
    ``handover``: the call with which the role handed over.
    """

    unstored: ExecutedCall | None
    sandbox: ThreadSandbox | None
    observed: Sequence[loops.ObservedCall]
    handover: ParsedCall | None


class ToolCallExecutor:
    """Executes tool calls in the sandboxes of their threads."""

    def __init__(
        self, database: Database, store: ObjectStore, sandboxes: ThreadSandboxes, memory: MemoryService
    ) -> None:
        self._database = database
        self._store = store
        self._sandboxes = sandboxes
        self._memory = memory

    async def execute_tool_calls(self, loaded: LoadedStep, calls: Sequence[ToolCall]) -> Execution:
        """Execute the calls in order and store each result once, except the last one, which goes with the checkpoint."""
        batch = _Batch(self._database, self._store, self._sandboxes, self._memory, loaded, calls)
        return await batch.run()

    async def remind_of_tools(self, step: Step) -> None:
        """Append a reminder to the thread, once: the answer called no tool."""
        note = context.no_tool_call_note(step.thread.role)
        async with self._database.transaction() as session:
            await lock_task(session, step.thread.task.task_id)
            await threads.append_message(session, step.thread.thread_id, step_keys.part(step.key, "note"), note)


@dataclass(frozen=True)
class _EarlierStart:
    """The stored start of a call by an earlier attempt. ``effect``: what it was about to write."""

    sandbox_id: str
    effect: str | None


class _Batch:
    """The calls of one step while they are executed."""

    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        sandboxes: ThreadSandboxes,
        memory: MemoryService,
        loaded: LoadedStep,
        calls: Sequence[ToolCall],
    ) -> None:
        self._database = database
        self._store = store
        self._sandboxes = sandboxes
        self._memory = memory
        self._loaded = loaded
        self._calls = calls
        self._sandbox: ThreadSandbox | None = None
        self._starts: dict[str, _EarlierStart | None] = {}
        """Calls whose start is stored, by key; None if this attempt stored it."""
        self._replacement_told = False
        stored = [text for call in calls if (text := self._stored_text(call)) is not None]
        self._has_results = bool(stored)
        """An earlier attempt executed calls of the step, in the sandbox that the thread's row names."""
        self._lost = any(text.endswith((MAY_HAVE_RUN, NOT_BEGUN)) for text in stored)
        """The step's sandbox was lost under one of its calls: what the others did is gone, and none is begun any more."""
        self._observed: list[loops.ObservedCall] = []

    async def run(self) -> Execution:
        await self._store_first_start()
        handover: ParsedCall | None = None
        unstored: ExecutedCall | None = None
        for call in self._calls:
            if unstored is not None:
                async with self._database.transaction() as session:
                    await store_result(session, self._loaded, unstored, self._sandbox)
                unstored = None
            stored = self._stored_text(call)
            if stored is None:
                unstored = await self._execute(call)
                handover = unstored.handover or handover
            elif stored.endswith(_SUBMITTED) and isinstance(call.parsed, ParsedCall) and call.parsed.terminal:
                handover = call.parsed
        return Execution(unstored, self._sandbox, self._observed, handover)

    def _stored_text(self, call: ToolCall) -> str | None:
        """The text of the call's result, if an earlier attempt stored one."""
        stored = self._loaded.stored.get(call.result_key)
        return None if stored is None else str(stored.get("content"))

    async def _store_first_start(self) -> None:
        """Store the start of the first call in the leased sandbox, with one statement outside of any transaction."""
        lease_id = self._loaded.start.sandbox_id
        first = next((call for call in self._calls if self._stored_text(call) is None), None)
        if first is not None and first.runs_once and lease_id is not None and not self._loaded.step.interrupted:
            async with self._database.statements() as session:
                earlier = await threads.begin_tool_call(session, self._loaded.thread, first.key, lease_id)
            self._starts[first.key] = None if earlier is None else _EarlierStart(*earlier)

    async def _execute(self, call: ToolCall) -> ExecutedCall:
        parsed, decision = call.parsed, call.decision
        began = time.perf_counter()
        if isinstance(parsed, ToolError):
            result = ToolResult(parsed.message, {"error": parsed.code}, ok=False)
        elif self._loaded.step.interrupted:
            result = await self._end_interrupted(call, parsed)
        elif parsed.terminal and not self._lost:
            result = ToolResult(_SUBMITTED)
        elif decision is not None and not decision.run:
            result = ToolResult(decision.text, {"error": f"approval_{decision.state}"}, ok=False)
        else:
            result = await self._run_tool(call, parsed)
        if decision is not None:
            text = f"{decision.text}\n{result.text}" if decision.run and decision.text else result.text
            result = replace(result, text=text, data={**result.data, **decision.data})
        if self._sandbox is not None and self._sandbox.replaced and not self._replacement_told:
            self._replacement_told = True
            result = replace(result, text=f"{await self._replacement_note()}\n\n{result.text}")
        if isinstance(parsed, ToolError) or not parsed.terminal:
            self._observe(call, parsed, result, slow=time.perf_counter() - began >= loops.SLOW_S)
        blob = None
        if result.output is not None:
            blob = await put_blob(self._store, self._loaded.task.project_id, result.output)
        return ExecutedCall(call, result, blob)

    def _observe(self, call: ToolCall, parsed: ParsedCall | ToolError, result: ToolResult, *, slow: bool) -> None:
        # Calls that are refused for the same reason again and again are a loop, too.
        self._observed.append(
            loops.ObservedCall(
                tool=parsed.name,
                arguments=parsed.digest if isinstance(parsed, ToolError) else loops.spelled(parsed.values),
                result=digest(result.text),
                slow=slow,
                new_tokens=self._loaded.new_tokens if call.index == 0 else 0,
            )
        )

    async def _replacement_note(self) -> str:
        """What the agent is told of the loss of its sandbox, with the background commands that ended with it."""
        thread = self._loaded.thread
        assert thread.sandbox_id is not None
        async with self._database.transaction() as session:
            lost = await background_commands(session, thread.id, thread.sandbox_id)
        return str(context.sandbox_replaced_note(lost)["content"])

    async def _run_tool(self, call: ToolCall, parsed: ParsedCall) -> ToolResult:
        leased = await self._acquire()
        thread = self._loaded.thread
        if self._has_results and thread.sandbox_id not in {None, leased.sandbox.id}:
            # What earlier attempts did is neither in this sandbox nor in a snapshot.
            self._lost = True
        if self._lost:
            # To go on here would leave half a step.
            return ToolResult(NOT_BEGUN, {"error": "sandbox_lost"}, ok=False)
        earlier = await self._store_start(call, leased.sandbox.id) if call.runs_once else None
        if earlier is not None and earlier.sandbox_id != leased.sandbox.id:
            self._lost = True
            return ToolResult(MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)
        ref = self._loaded.step.thread
        tools = SandboxTools(
            leased.sandbox,
            exec_id=derived_id("command", call.key),
            output_id=call.output_id,
            journal=EditJournal(self._database, call.key, earlier.effect if earlier else None),
            outputs=KeptOutputs(self._database, self._store, ref),
            knowledge=Knowledge(self._database, self._memory, self._loaded.step, call.key),
        )
        try:
            return await tools.run(parsed)
        except SandboxLost:
            # The replacement begins with the last checkpoint; what this call did to the old one is gone with it.
            self._lost = True
            return await self._replace_lost()

    async def _acquire(self) -> ThreadSandbox:
        """The thread's sandbox, leased at the first call that needs one."""
        if self._sandbox is None:
            loaded = self._loaded
            self._sandbox = await self._sandboxes.acquire(loaded.thread, loaded.task, loaded.start.sandbox_id)
        return self._sandbox

    async def _replace_lost(self) -> ToolResult:
        self._sandbox = await self._sandboxes.acquire(self._loaded.thread, self._loaded.task)
        return ToolResult(MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)

    async def _store_start(self, call: ToolCall, sandbox_id: str) -> _EarlierStart | None:
        """Store that the call starts in this sandbox; returns its start by an earlier attempt, if there was one."""
        if call.key not in self._starts:
            async with self._database.transaction() as session:
                earlier = await threads.begin_tool_call(session, self._loaded.thread, call.key, sandbox_id)
            return None if earlier is None else _EarlierStart(*earlier)
        start = self._starts[call.key]
        if start is None and sandbox_id != self._loaded.start.sandbox_id:
            # The sandbox in which it was to start turned out to be lost: it has not started.
            async with self._database.transaction() as session:
                await threads.move_tool_call(session, call.key, sandbox_id)
        return start

    async def _end_interrupted(self, call: ToolCall, parsed: ParsedCall) -> ToolResult:
        """End a command that a message from a person interrupted, and return its output so far. Begin no other call."""
        if not isinstance(parsed.arguments, Shell):
            return ToolResult(_NOT_RUN, {"error": "interrupted"}, ok=False)
        async with self._database.transaction() as session:
            begun_in = await threads.begun_in(session, call.key)
        if begun_in is None:
            return ToolResult(_NOT_RUN, {"error": "interrupted"}, ok=False)
        leased = await self._acquire()
        if leased.sandbox.id != begun_in:
            return ToolResult(MAY_HAVE_RUN, {"error": "sandbox_lost"}, ok=False)
        exec_id = derived_id("command", call.key)
        try:
            await leased.sandbox.kill(exec_id)
            output = (await leased.sandbox.poll(exec_id)).output
        except ExecNotFound:
            return ToolResult(_NOT_RUN, {"error": "interrupted"}, ok=False)
        except SandboxLost:
            return await self._replace_lost()
        shown = cut_output(output, call.output_id)
        return ToolResult(
            f"{shown.text}\n{_INTERRUPTED}" if shown.text else _INTERRUPTED,
            {"error": "interrupted", "output_bytes": len(output)},
            output=output if shown.truncated else None,
            ok=False,
        )
