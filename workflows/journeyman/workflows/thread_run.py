"""A thread from its opening to the role's hand-over, as workflow code: one ``run_step`` activity after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError

from journeyman.workflows import timing
from journeyman.workflows.activity_calls import (
    SandboxRoute,
    code_of,
    facts_of,
    message_of,
    run_sandbox_activity,
    run_store_activity,
)
from journeyman.workflows.continuation import is_due
from journeyman.workflows.control import Interrupted, WorkflowControl
from journeyman.workflows.types import PendingApprovals, Step, StepOutcome, TaskApprovals, TaskRef, ThreadRef

PAUSES: Final = {
    "budget_exhausted": "budget",
    "context_exhausted": "context_exhausted",
    "context_too_long": "context_exhausted",
    "content_filtered": "content_filtered",
    "model_refused": "model_refused",
}
"""Failures of a step that a person can do something about, and the reason for which the task pauses then."""


@dataclass(frozen=True)
class ThreadRun:
    """How far a thread has come.

    ``step``: the number of the next step. ``outcome``: that of the step that handed over. ``suspended``: the run's history is
    full; go on in a new run. Neither: the role did not hand over within the limits of ``timing``.
    """

    step: int
    outcome: StepOutcome | None = None
    suspended: bool = False


async def run_thread(control: WorkflowControl, thread: ThreadRef, step: int) -> ThreadRun:
    """Run steps from number ``step`` until the role hands over, a limit of ``timing`` is reached, or the history is full.

    Pauses the task, and goes on after it is resumed, when a limit refuses a step or the circuit breaker trips.
    """
    idle = 0
    tries = 0
    route = SandboxRoute(thread.task.sandbox_queue)
    while step < timing.TURNS_PER_THREAD and idle < timing.IDLE_TURNS:
        # Not between two tries of a step: each has its own number, which a new run would begin anew.
        if tries == 0 and is_due():
            return ThreadRun(step, suspended=True)
        await control.wait_until_resumed()
        control.begin_step()
        try:
            outcome = await _run_step(control, Step(thread=thread, number=step, tries=tries), route)
        except ActivityError as error:
            reason = PAUSES.get(code_of(error))
            if reason is None:
                raise
            await control.pause_task(thread.task, reason, message_of(error), facts_of(error))
            tries += 1
            continue
        if outcome is None:
            return ThreadRun(step, suspended=True)
        if outcome.unanswered:
            tries += 1
            continue
        step += 1
        tries = 0
        idle = idle + 1 if outcome.idle else 0
        if outcome.submitted:
            return ThreadRun(step, outcome)
        if outcome.tripped is not None:
            await control.pause_task(thread.task, "circuit_breaker", outcome.tripped)
    return ThreadRun(step)


async def _run_step(control: WorkflowControl, step: Step, route: SandboxRoute) -> StepOutcome | None:
    """Run one step, with the wait for people's decisions on its tool calls; None to go on waiting in a new run.

    After an interruption the step ends without the tool calls that are not done. How far it came is known to the store alone.
    """
    try:
        while True:
            outcome = await run_sandbox_activity("run_step", step, StepOutcome, route, control.run_interruptible)
            route.node = outcome.node
            if not outcome.waiting:
                return outcome
            if not await wait_for_decisions(control, step.thread.task, outcome.waiting, idle=(step.thread, route)):
                return None
            await control.wait_until_resumed()
            control.check_interrupted()
            step = step.model_copy(update={"new_tokens": outcome.new_tokens})
    except Interrupted:
        interrupted = step.model_copy(update={"interrupted": True})
        outcome = await run_sandbox_activity("run_step", interrupted, StepOutcome, route)
        route.node = outcome.node
        return outcome


async def wait_for_decisions(
    control: WorkflowControl,
    task: TaskRef,
    approvals: Sequence[str],
    *,
    idle: tuple[ThreadRef, SandboxRoute] | None = None,
    interruptible: bool = True,
) -> bool:
    """Return True once no approval is pending: decided, expired, or withdrawn. Return False when the run's history is full.

    The store holds the decisions; a signal only says that it is time to read them. A pause does not stop the wait: deadlines
    of decisions run on. ``idle``: the thread that waits; its sandbox is released after ``timing.HELD_WHILE_WAITING``.
    """
    release_at = workflow.now() + timing.HELD_WHILE_WAITING
    with control.decision_wait(interruptible=interruptible):
        while True:
            request = TaskApprovals(task=task, approvals=list(approvals))
            found = await run_store_activity("settle_approvals", request, PendingApprovals)
            if not found.pending:
                return True
            if is_due():
                return False
            timeout = min(found.recheck_after_s, timing.LOOK_AGAIN.total_seconds())
            if idle is not None:
                left = (release_at - workflow.now()).total_seconds()
                if left <= 0:
                    thread, route = idle
                    await run_sandbox_activity("release_idle_sandbox", thread, NoneType, route)
                    idle = None
                    continue
                timeout = min(timeout, left)
            await control.wait_for_decision(found.pending, timeout)
