"""One conversation from opening to hand-over, as workflow code: model call, tool calls, next step."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState

with workflow.unsafe.imports_passed_through():
    from journeyman.platform.kit.names import MEMO_TOGETHER, Queue

from journeyman.workflows import timing
from journeyman.workflows.continuation import is_due
from journeyman.workflows.types import Pause, Standing, Step, StepOutcome, TaskRef, ThreadRef, Turn, Waiting

R = TypeVar("R")

PAUSES: Final = {"budget_exhausted": "budget", "context_exhausted": "context_exhausted"}
"""Failures of a model call that a person can do something about, and the reason for which the task waits for that."""


class Interrupted(Exception):
    """The call was cancelled for a message from a person, which is to be read now."""


class Control:
    """Pause, resume and interrupt, kept by each workflow and awaited between steps.

    ``spread`` tells the task's other conversations of a pause that begins in this one.
    """

    def __init__(self, paused_for: str | None, spread: Callable[[str], Awaitable[None]]) -> None:
        self.paused_for = paused_for
        self.changes = 0
        """Pauses and resumes that came to this workflow."""
        self._spread = spread
        self._call: workflow.ActivityHandle[Any] | None = None
        self._interruptible = False
        self._interrupted = False
        """A message from a person came since the step began."""
        self._continued = workflow.info().continued_run_id is not None
        """The next step may have begun in the run before."""
        self.heard: set[str] = set()
        """Approvals that were decided, as the signals said, and not looked at yet."""

    def pause(self, reason: str) -> None:
        self.paused_for = reason
        self.changes += 1

    def resume(self) -> None:
        self.paused_for = None
        self.changes += 1

    def begin_step(self) -> None:
        """Messages that have come so far are read by this step's model call."""
        self._interrupted = self._interrupted and self._continued
        self._continued = False

    def interrupt(self) -> None:
        """Cancel the call that is under way, if one is, and begin no other of the step; the next one reads the message."""
        self._interrupted = True
        if self._call is not None:
            self._call.cancel()

    def check_interrupted(self) -> None:
        """Raises :class:`Interrupted`: a call that ends just when it is cancelled does not tell of the message."""
        if self._interrupted:
            raise Interrupted

    def hear(self, approval_id: str) -> None:
        """An approval was decided: whoever waits for it looks at it now."""
        self.heard.add(approval_id)

    @contextmanager
    def wait(self, *, interruptible: bool) -> Iterator[None]:
        """A wait for people, which their messages may interrupt."""
        self._interruptible = interruptible
        try:
            yield
        finally:
            self._interruptible = False

    async def listen(self, approvals: Sequence[str], timeout_s: float) -> None:
        """Return when one of these was decided, or after the time. Raises :class:`Interrupted`."""
        wanted = set(approvals)
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._cut_short or bool(self.heard & wanted), timeout=timeout_s)
        self.heard -= wanted
        if self._cut_short:
            raise Interrupted

    @property
    def _cut_short(self) -> bool:
        return self._interruptible and self._interrupted

    async def stop(
        self, task: TaskRef, reason: str, detail: str | None = None, facts: dict[str, Any] | None = None
    ) -> None:
        """Pause the whole task from within, and return when it goes on.

        The workflows are told before the store is: whoever sees the pause and resumes the task comes after it. Who resumed
        it for the sake of an earlier pause may have come between the two: then the note is taken back.
        """
        pause = Pause(id=str(workflow.uuid4()), task=task, reason=reason, detail=detail, facts=facts or {})
        self.pause(reason)
        await self._spread(reason)
        await store("pause_task", pause)
        await self.gate()
        await store("end_pause", pause)

    async def gate(self) -> None:
        """Return as soon as the task is not paused. Raises :class:`asyncio.CancelledError` once it is to be cancelled."""
        check_cancelled()
        await workflow.wait_condition(lambda: self.paused_for is None)

    async def run(self, call: workflow.ActivityHandle[R]) -> R:
        """The result of an activity that a person may interrupt. Raises :class:`Interrupted`."""
        self._call = call
        try:
            return await _settled(call)
        except ActivityError as error:
            # Or its worker died, or it failed, before it heard of that: then the server does not try it again either.
            cut_off = isinstance(error.cause, CancelledError) or error.retry_state == RetryState.CANCEL_REQUESTED
            if self._interrupted and cut_off:
                check_cancelled()
                raise Interrupted from error
            raise
        finally:
            self._call = None


async def _settled(call: Awaitable[R]) -> R:
    """The result. An activity that completes in the moment it is cancelled swallows the cancellation: it is raised here."""
    result = await call
    check_cancelled()
    return result


def check_cancelled() -> None:
    current = asyncio.current_task()
    if current is not None and current.cancelling():
        raise asyncio.CancelledError


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
        # Not between two tries of a step: each has its own number, which a new run would begin anew.
        if tries == 0 and is_due():
            return Talk(step, suspended=True)
        await control.gate()
        current = Step(thread=thread, number=step, tries=tries)
        control.begin_step()
        try:
            outcome = await _take(control, current)
        except ActivityError as error:
            reason = PAUSES.get(code_of(error))
            if reason is None:
                raise
            await control.stop(thread.task, reason, message_of(error), facts_of(error))
            tries += 1
            continue
        if outcome is None:
            return Talk(step, suspended=True)
        if outcome.unanswered:
            tries += 1
            continue
        step += 1
        tries = 0
        idle = idle + 1 if outcome.idle else 0
        if outcome.submitted:
            return Talk(step, outcome)
        if outcome.tripped is not None:
            await control.stop(thread.task, "circuit_breaker", outcome.tripped)
    return Talk(step)


async def _take(control: Control, step: Step) -> StepOutcome | None:
    """Call the model and carry out its calls; None to go on waiting for people's decisions on them in a new run."""
    try:
        turn = await control.run(_start_at_model("take_step" if are_together() else "call_model", step))
    except Interrupted:
        # How far it came is known to the store alone.
        return await _cut_short(step)
    return await _run_tools(control, step.model_copy(update={"new_tokens": turn.new_tokens}), turn.outcome)


def _start_at_model(activity: str, step: Step) -> workflow.ActivityHandle[Turn]:
    return workflow.start_activity(
        activity,
        step,
        result_type=Turn,
        task_queue=queue_for(Queue.MODELS),
        start_to_close_timeout=timing.LONG,
        heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
        retry_policy=timing.MODELS,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


async def _run_tools(control: Control, step: Step, outcome: StepOutcome | None) -> StepOutcome | None:
    """Carry out the step's calls, when those that need it are decided; None to go on waiting for that in a new run.

    ``outcome``: what a first try came to, if there was one. After an interruption, calls that are not done are ended, and said
    to be so.
    """
    try:
        while True:
            if outcome is None:
                control.check_interrupted()
                outcome = await control.run(start_in_sandbox("run_tools", step, StepOutcome))
            if not outcome.waiting:
                return outcome
            decided = await until_decided(
                control,
                step.thread.task,
                outcome.waiting,
                put_away=lambda: in_sandbox("put_away", step.thread, type(None)),
            )
            if not decided:
                return None
            await control.gate()
            outcome = None
    except Interrupted:
        return await _cut_short(step)


async def _cut_short(step: Step) -> StepOutcome:
    """End what is under way of the step's calls, and begin none."""
    return await in_sandbox("run_tools", step.model_copy(update={"interrupted": True}), StepOutcome)


async def until_decided(
    control: Control,
    task: TaskRef,
    approvals: Sequence[str],
    *,
    put_away: Callable[[], Awaitable[None]] | None = None,
    interruptible: bool = True,
) -> bool:
    """True once none of the approvals is pending any more: decided, expired, or withdrawn. False: go on in a new run first.

    What was decided is in the store; a signal only says that it is time to look. A pause does not matter here: time runs on
    for who is to decide. ``put_away`` is called once, after a while, to give back what need not be held for so long.
    """
    put_away_at = workflow.now() + timing.HELD_WHILE_WAITING
    with control.wait(interruptible=interruptible):
        while True:
            standing = await ask_stores("settle_approvals", Waiting(task=task, approvals=list(approvals)), Standing)
            check_cancelled()
            if not standing.pending:
                return True
            if is_due():
                return False
            timeout = min(standing.again_s, timing.LOOK_AGAIN.total_seconds())
            if put_away is not None:
                left = (put_away_at - workflow.now()).total_seconds()
                if left <= 0:
                    await put_away()
                    put_away = None
                    continue
                timeout = min(timeout, left)
            await control.listen(standing.pending, timeout)


def code_of(error: ActivityError) -> str:
    """The error code with which the activity failed, if it did."""
    return (error.cause.type or "") if isinstance(error.cause, ApplicationError) else ""


def are_together() -> bool:
    """Whether all workers have all roles, as far as this workflow is concerned."""
    return bool(workflow.memo_value(MEMO_TOGETHER, default=False))


def queue_for(role: Queue) -> Queue:
    """Where activities of this role go: to its own queue, or to the workflow's where all workers have all roles."""
    return Queue.ORCHESTRATION if are_together() else role


def message_of(error: ActivityError) -> str | None:
    """What the activity's error tells people, without the code, which ``str`` puts before it."""
    return error.cause.message if isinstance(error.cause, ApplicationError) else None


def facts_of(error: ActivityError) -> dict[str, Any]:
    """What the activity's error tells programs."""
    facts = error.cause.details[0] if isinstance(error.cause, ApplicationError) and error.cause.details else {}
    return facts if isinstance(facts, dict) else {}


async def store(activity: str, argument: object, *, retry: RetryPolicy = timing.STORES) -> None:
    """Run an activity that only writes to stores."""
    await ask_stores(activity, argument, type(None), retry=retry)


async def ask_stores(activity: str, argument: object, result: type[R], *, retry: RetryPolicy = timing.STORES) -> R:
    """Run an activity that works with stores alone."""
    handle: workflow.ActivityHandle[R] = workflow.start_activity(
        activity,
        argument,
        result_type=result,
        task_queue=queue_for(Queue.ORCHESTRATION),
        start_to_close_timeout=timing.SHORT,
        heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
        retry_policy=retry,
    )
    return await _settled(handle)


async def in_sandbox(activity: str, argument: object, result: type[R]) -> R:
    """Run an activity that works in a sandbox, watched by heartbeat."""
    return await _settled(start_in_sandbox(activity, argument, result))


def start_in_sandbox(activity: str, argument: object, result: type[R]) -> workflow.ActivityHandle[R]:
    handle: workflow.ActivityHandle[R] = workflow.start_activity(
        activity,
        argument,
        result_type=result,
        task_queue=queue_for(Queue.SANDBOXES),
        start_to_close_timeout=timing.LONG,
        heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
        retry_policy=timing.STORES,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )
    return handle
