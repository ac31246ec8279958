"""One conversation from opening to hand-over, as workflow code: model call, tool calls, next step."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from journeyman.platform.kit.names import Queue

from journeyman.workflows import timing
from journeyman.workflows.types import Pause, Step, StepOutcome, ThreadRef, Turn

R = TypeVar("R")

BUDGET_EXHAUSTED: Final = "budget_exhausted"


class Control:
    """Pause and resume, kept by each workflow and awaited between steps."""

    def __init__(self) -> None:
        self.paused_for: str | None = None

    def pause(self, reason: str) -> None:
        self.paused_for = reason

    def resume(self) -> None:
        self.paused_for = None

    async def gate(self) -> None:
        """Return as soon as the task is not paused. Raises :class:`asyncio.CancelledError` once it is to be cancelled.

        An activity that completes in the moment it is cancelled swallows the cancellation: it shows only here.
        """
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise asyncio.CancelledError
        await workflow.wait_condition(lambda: self.paused_for is None)


@dataclass(frozen=True)
class Talk:
    """How a conversation stands. ``outcome`` is the hand-over; without one, either the history is full (``suspended``: go on
    in a new run at ``step``), or the role never handed over.
    """

    step: int
    outcome: StepOutcome | None = None
    suspended: bool = False


async def converse(control: Control, thread: ThreadRef, step: int) -> Talk:
    """Run steps until the role hands over, the conversation is stuck, or the run's history has grown enough."""
    idle = 0
    tries = 0
    while step < timing.TURNS_PER_THREAD and idle < timing.IDLE_TURNS:
        if workflow.info().is_continue_as_new_suggested():
            return Talk(step, suspended=True)
        await control.gate()
        current = Step(thread=thread, number=step, tries=tries)
        try:
            turn = await workflow.execute_activity(
                "call_model",
                current,
                result_type=Turn,
                task_queue=Queue.MODELS,
                start_to_close_timeout=timing.LONG,
                heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
                retry_policy=timing.MODELS,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
        except ActivityError as error:
            if not is_failure(error, BUDGET_EXHAUSTED):
                raise
            control.pause("budget")
            detail = str(error.cause) if error.cause else None
            await store("pause_task", Pause(task=thread.task, reason="budget", detail=detail, facts=facts_of(error)))
            tries += 1
            continue
        acting = current.model_copy(update={"new_tokens": turn.new_tokens})
        outcome = await in_sandbox("run_tools", acting, StepOutcome)
        step += 1
        tries = 0
        idle = idle + 1 if outcome.idle else 0
        if outcome.submitted:
            return Talk(step, outcome)
        if outcome.tripped is not None:
            control.pause("circuit_breaker")
            await store("pause_task", Pause(task=thread.task, reason="circuit_breaker", detail=outcome.tripped))
    return Talk(step)


def is_failure(error: ActivityError, code: str) -> bool:
    """Whether the activity failed with this error code."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == code


def facts_of(error: ActivityError) -> dict[str, Any]:
    """What the activity's error tells programs."""
    facts = error.cause.details[0] if isinstance(error.cause, ApplicationError) and error.cause.details else {}
    return facts if isinstance(facts, dict) else {}


async def store(activity: str, argument: object, *, retry: RetryPolicy = timing.STORES) -> None:
    """Run an activity that only writes to stores."""
    await workflow.execute_activity(
        activity,
        argument,
        task_queue=Queue.ORCHESTRATION,
        start_to_close_timeout=timing.SHORT,
        heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
        retry_policy=retry,
    )


async def in_sandbox(activity: str, argument: object, result: type[R]) -> R:
    """Run an activity that works in a sandbox, watched by heartbeat."""
    outcome: R = await workflow.execute_activity(
        activity,
        argument,
        result_type=result,
        task_queue=Queue.SANDBOXES,
        start_to_close_timeout=timing.LONG,
        heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
        retry_policy=timing.STORES,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )
    return outcome
