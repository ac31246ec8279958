"""How workflow code runs activities: on which queue, with which timeouts, and where to go when a node is gone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType

with workflow.unsafe.imports_passed_through():
    from journeyman.platform.kit.names import node_queue

from journeyman.workflows import timing

R = TypeVar("R")
RunHandle = Callable[[workflow.ActivityHandle[R]], Awaitable[R]]

SANDBOX_ELSEWHERE: Final = "sandbox_elsewhere"
"""Code of the failure that names the node of a sandbox which the worker cannot reach."""


@dataclass
class SandboxRoute:
    """The queue of activities that need one particular sandbox.

    ``shared_queue`` is polled by the workers of every node; ``node`` is the node that holds the sandbox, once that is known.
    """

    shared_queue: str
    node: str | None = None

    @property
    def queue(self) -> str:
        """The node's own queue, or the shared one while no node holds the sandbox."""
        return self.shared_queue if self.node is None else node_queue(self.node)

    def reroute(self, error: ActivityError) -> bool:
        """Change the node as the failure says; returns whether the activity is to be run again for that.

        A worker that cannot reach the sandbox names its node. A node's queue that no worker polls times out; then a worker of
        another node finds the sandbox lost and replaces it, or finds the node alive and sends the activity back to it.
        """
        if code_of(error) == SANDBOX_ELSEWHERE:
            self.node = facts_of(error).get("node")
            return True
        cause = error.cause
        if (
            self.node is not None
            and isinstance(cause, exceptions.TimeoutError)
            and cause.type == TimeoutType.SCHEDULE_TO_START
        ):
            self.node = None
            return True
        return False


async def run_store_activity(activity: str, argument: object, result: type[R]) -> R:
    """Run an activity that works with stores alone, on the workflow's own queue."""
    handle: workflow.ActivityHandle[R] = workflow.start_activity(
        activity,
        argument,
        result_type=result,
        start_to_close_timeout=timing.SHORT,
        heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
        retry_policy=timing.RETRY,
    )
    return await completed(handle)


async def completed(handle: Awaitable[R]) -> R:
    """Return the activity's result.

    Raises :class:`asyncio.CancelledError` also when the activity completed in the moment the workflow was cancelled: the
    SDK drops the cancellation in that case.
    """
    result = await handle
    check_cancelled()
    return result


async def run_sandbox_activity(
    activity: str, argument: object, result: type[R], route: SandboxRoute, run: RunHandle[R] = completed
) -> R:
    """Run an activity on the queue of workers that reach the sandbox of ``route``, and follow the sandbox between nodes.

    ``run`` awaits one handle; ``WorkflowControl.run_interruptible`` makes the activity interruptible.
    """
    while True:
        handle: workflow.ActivityHandle[R] = workflow.start_activity(
            activity,
            argument,
            result_type=result,
            task_queue=route.queue,
            schedule_to_start_timeout=None if route.node is None else timing.NODE_SILENT,
            start_to_close_timeout=timing.LONG,
            heartbeat_timeout=timing.HEARTBEAT_TIMEOUT,
            retry_policy=timing.RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        try:
            return await run(handle)
        except ActivityError as error:
            if not route.reroute(error):
                raise


def check_cancelled() -> None:
    """Raise :class:`asyncio.CancelledError` if the current asyncio task was cancelled."""
    current = asyncio.current_task()
    if current is not None and current.cancelling():
        raise asyncio.CancelledError


def code_of(error: ActivityError) -> str:
    """The error code with which the activity failed; empty for timeouts and cancellations."""
    return (error.cause.type or "") if isinstance(error.cause, ApplicationError) else ""


def message_of(error: ActivityError) -> str | None:
    """The activity's error text for people, without the code that ``str`` puts before it."""
    return error.cause.message if isinstance(error.cause, ApplicationError) else None


def facts_of(error: ActivityError) -> dict[str, Any]:
    """The details of the activity's error, for programs."""
    facts = error.cause.details[0] if isinstance(error.cause, ApplicationError) and error.cause.details else {}
    return facts if isinstance(facts, dict) else {}
