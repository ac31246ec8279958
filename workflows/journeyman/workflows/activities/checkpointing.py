"""The checkpoint at the end of a step: snapshot, circuit breaker, and what follows from a hand-over."""

from journeyman.agents.arguments import SubmitReview
from journeyman.agents.roles import Role, profile
from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.kit.database import Database
from journeyman.workflows.activities.approvals import asks_for_plans
from journeyman.workflows.activities.breaker import record_alarms, watch
from journeyman.workflows.activities.execution import Execution
from journeyman.workflows.activities.loaded_step import LoadedStep
from journeyman.workflows.activities.results import store_result
from journeyman.workflows.activities.submissions import judge
from journeyman.workflows.activities.thread_sandbox import ThreadSandboxes
from journeyman.workflows.types import StepOutcome


class Checkpointer:
    """Makes the checkpoints of steps."""

    def __init__(self, database: Database, sandboxes: ThreadSandboxes) -> None:
        self._database = database
        self._sandboxes = sandboxes

    async def make_checkpoint(self, loaded: LoadedStep, execution: Execution) -> StepOutcome:
        """Store the step's last result and its checkpoint in one transaction, once; returns what follows from the step."""
        step, ref, thread = loaded.step, loaded.step.thread, loaded.thread
        forks = profile(ref.role).forks_workspace
        snapshot, captured = thread.snapshot, None
        if not forks or snapshot is None:
            # Also when this step ran nothing: background commands change files between steps.
            sandbox = execution.sandbox
            if sandbox is None:
                sandbox = await self._sandboxes.acquire(thread, loaded.task, loaded.start.sandbox_id)
            taken = await self._sandboxes.capture(sandbox)
            snapshot, captured = taken.digest, taken if taken.changed else None
        watched = watch(step, thread.loop_window, execution.observed, snapshot)
        handover = execution.handover
        submitted = handover is not None
        planned = submitted and ref.role == Role.PLANNER
        outcome = StepOutcome(
            submitted=submitted,
            snapshot=snapshot,
            tripped=watched.tripped,
            unapproved=planned and asks_for_plans(loaded.task),
        )
        point = checkpoints.Point(
            project_id=loaded.task.project_id,
            task_id=loaded.task.id,
            thread_id=ref.thread_id,
            subtask_id=ref.subtask_id,
            plan_revision=ref.revision if planned else loaded.task.plan_revision,
            snapshot=snapshot,
            step_key=step.key,
            submitted=submitted,
        )
        async with self._database.transaction() as session:
            *_, event = await store_result(session, loaded, execution.unstored, execution.sandbox, [point.event()])
            if event.new:
                size = None if captured is None else (captured.files, captured.bytes)
                await checkpoints.store(session, point, event.seq, checkpoints.AfterStep(watched.window, size))
            elif captured is not None:
                await self._sandboxes.store_snapshot(session, ref, captured)
            await record_alarms(session, step, watched.alarms)
            if handover is not None and isinstance(handover.arguments, SubmitReview):
                outcome.next, outcome.reason = await judge(session, step, handover.arguments)
        if submitted and forks:
            await self._sandboxes.release(thread)
        return outcome
