"""Pause, resume and interrupt of one workflow."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import NoneType
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, CancelledError, RetryState

from journeyman.workflows.activity_calls import check_cancelled, completed, run_store_activity
from journeyman.workflows.types import Pause, TaskRef

R = TypeVar("R")


class Interrupted(Exception):
    """The activity was cancelled for a message from a person, which the next step reads."""


class WorkflowControl:
    """The pause state and the interruptible activity of one workflow.

    ``propagate_pause`` signals to the task's other workflows a pause that begins in this one.
    """

    def __init__(self, paused_for: str | None, propagate_pause: Callable[[str], Awaitable[None]]) -> None:
        self.paused_for = paused_for
        self.pause_version = 0
        """Number of pauses and resumes that came to this workflow."""
        self.decided: set[str] = set()
        """Approvals that were decided according to signals, and whose decision was not read yet."""
        self._propagate_pause = propagate_pause
        self._activity: workflow.ActivityHandle[Any] | None = None
        self._wait_is_interruptible = False
        self._interrupted = False
        """A message from a person came since the step began."""
        self._continued = workflow.info().continued_run_id is not None
        """The next step may have begun in the run before."""

    def pause(self, reason: str) -> None:
        """Begin a pause. Steps that run end first."""
        self.paused_for = reason
        self.pause_version += 1

    def resume(self) -> None:
        """End the pause."""
        self.paused_for = None
        self.pause_version += 1

    def begin_step(self) -> None:
        """Forget interruptions: the step's model call reads all messages that came so far."""
        self._interrupted = self._interrupted and self._continued
        self._continued = False

    def interrupt(self) -> None:
        """Cancel the running interruptible activity, and start no other one of the step."""
        self._interrupted = True
        if self._activity is not None:
            self._activity.cancel()

    def check_interrupted(self) -> None:
        """Raise :class:`Interrupted` if a message came since the step began.

        Needed because an activity that completes in the moment of its cancellation does not report the cancellation.
        """
        if self._interrupted:
            raise Interrupted

    def note_decision(self, approval_id: str) -> None:
        """Note that an approval was decided; a wait for it reads the decision now."""
        self.decided.add(approval_id)

    @contextmanager
    def decision_wait(self, *, interruptible: bool) -> Iterator[None]:
        """Mark the block as a wait for people, which their messages interrupt if ``interruptible``."""
        self._wait_is_interruptible = interruptible
        try:
            yield
        finally:
            self._wait_is_interruptible = False

    async def wait_for_decision(self, approvals: Sequence[str], timeout_s: float) -> None:
        """Return when one of the approvals was decided, or after ``timeout_s`` seconds. Raises :class:`Interrupted`."""
        awaited = set(approvals)
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._wait_is_interrupted or bool(self.decided & awaited), timeout=timeout_s
            )
        self.decided -= awaited
        if self._wait_is_interrupted:
            raise Interrupted

    @property
    def _wait_is_interrupted(self) -> bool:
        return self._wait_is_interruptible and self._interrupted

    async def pause_task(
        self, task: TaskRef, reason: str, detail: str | None = None, facts: dict[str, Any] | None = None
    ) -> None:
        """Pause the whole task from within this workflow, and return when it is resumed.

        The workflows learn of the pause before the store does, so that a resume that follows the stored pause finds them
        paused. A resume of an earlier pause may come between the two: then the stored pause is removed at the end.
        """
        pause = Pause(id=str(workflow.uuid4()), task=task, reason=reason, detail=detail, facts=facts or {})
        self.pause(reason)
        await self._propagate_pause(reason)
        await run_store_activity("pause_task", pause, NoneType)
        await self.wait_until_resumed()
        await run_store_activity("end_pause", pause, NoneType)

    async def wait_until_resumed(self) -> None:
        """Return as soon as the task is not paused. Raises :class:`asyncio.CancelledError` if the workflow is cancelled."""
        check_cancelled()
        await workflow.wait_condition(lambda: self.paused_for is None)

    async def run_interruptible(self, handle: workflow.ActivityHandle[R]) -> R:
        """Return the result of an activity that :meth:`interrupt` cancels. Raises :class:`Interrupted` then."""
        self._activity = handle
        try:
            return await completed(handle)
        except ActivityError as error:
            # The server does not retry an activity that failed, or lost its worker, after its cancellation was requested.
            cut_off = isinstance(error.cause, CancelledError) or error.retry_state == RetryState.CANCEL_REQUESTED
            if self._interrupted and cut_off:
                check_cancelled()
                raise Interrupted from error
            raise
        finally:
            self._activity = None
