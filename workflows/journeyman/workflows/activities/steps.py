"""One step of an agent as one activity: load, ask the model, execute the tool calls, make the checkpoint."""

from temporalio import activity

from journeyman.agents.roles import profile
from journeyman.platform.kit.database import Database
from journeyman.platform.tasks.repository import for_step
from journeyman.platform.threads import repository as threads
from journeyman.workflows.activities.approvals import request_call_approvals
from journeyman.workflows.activities.checkpointing import Checkpointer
from journeyman.workflows.activities.execution import ToolCallExecutor
from journeyman.workflows.activities.loaded_step import LoadedStep, load_step
from journeyman.workflows.activities.model_call import ModelCaller
from journeyman.workflows.activities.thread_sandbox import ThreadSandboxes
from journeyman.workflows.activities.tool_calls import parse_calls
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import Step, StepOutcome, ThreadRef


class StepActivities:
    """``node``: the node of this worker, where steps are sent to the queue of the node that holds their sandbox."""

    def __init__(
        self,
        database: Database,
        model: ModelCaller,
        executor: ToolCallExecutor,
        checkpointer: Checkpointer,
        sandboxes: ThreadSandboxes,
        *,
        node: str | None,
    ) -> None:
        self._database = database
        self._model = model
        self._executor = executor
        self._checkpointer = checkpointer
        self._sandboxes = sandboxes
        self._node = node

    @activity.defn
    @beating
    async def run_step(self, step: Step) -> StepOutcome:
        """Carry the step to its checkpoint, or to where it waits for people's decisions on its tool calls.

        What an earlier attempt stored under the step's keys is not done again. An interrupted step calls no model and begins no
        tool call. Raises :class:`~journeyman.platform.sandboxes.errors.SandboxElsewhere` when the thread's sandbox is on another
        node that is alive.
        """
        loaded = await load_step(self._database, step)
        if loaded.start.sandbox_id is not None:
            await self._sandboxes.check_node(loaded.start.sandbox_id, loaded.start.node)
        if loaded.answer is None:
            if step.interrupted:
                return self._located(StepOutcome(unanswered=True), loaded)
            loaded = await self._model.ask(loaded)
        calls = parse_calls(loaded)
        if loaded.task.approval_policy:
            waiting, calls = await request_call_approvals(self._database, loaded, calls)
            if waiting:
                return self._located(StepOutcome(waiting=waiting, new_tokens=loaded.new_tokens), loaded)
        if not calls:
            await self._executor.remind_of_tools(step)
            return self._located(StepOutcome(idle=True), loaded)
        execution = await self._executor.execute_tool_calls(loaded, calls)
        outcome = await self._checkpointer.make_checkpoint(loaded, execution)
        outcome.node = self._node
        return outcome

    def _located(self, outcome: StepOutcome, loaded: LoadedStep) -> StepOutcome:
        """The outcome with the node of the thread's sandbox, if it has one."""
        outcome.node = None if loaded.start.sandbox_id is None else self._node
        return outcome

    @activity.defn
    @beating
    async def release_idle_sandbox(self, ref: ThreadRef) -> None:
        """End the thread's sandbox while its agent waits for people. Files are kept in a snapshot, processes are lost."""
        async with self._database.transaction() as session:
            thread = await threads.get_thread(session, ref.thread_id)
            task = await for_step(session, ref.task.task_id)
            lease_id = await self._sandboxes.leased_id(session, thread)
        if lease_id is None:
            return
        if not profile(ref.role).forks_workspace:
            sandbox = await self._sandboxes.acquire(thread, task, lease_id)
            captured = await self._sandboxes.capture(sandbox)
            if captured.changed:
                async with self._database.transaction() as session:
                    await self._sandboxes.store_snapshot(session, ref, captured)
        await self._sandboxes.release(thread)
