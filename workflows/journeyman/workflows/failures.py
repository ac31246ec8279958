"""Which errors Temporal tries again, decided in one place for all activities."""

import logging
from collections import OrderedDict
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from journeyman.platform.inference.errors import ModelUnavailable
from journeyman.platform.kit.errors import JourneymanError
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.sandboxes.errors import NoRoomForSandbox, SandboxElsewhere
from journeyman.workflows import timing

logger = logging.getLogger(__name__)


_COUNTED: Final = 10_000
"""Activities whose unexpected errors a process remembers."""


def as_failure(error: Exception, attempt: int, *, unexpected: int | None = None) -> ApplicationError:
    """The failure to report for an activity's error: retryable if the cause may pass by itself, final otherwise.

    An unreachable database is retryable without limit. An unexpected error is tried ``timing.MAX_UNEXPECTED_ATTEMPTS`` times;
    its text stays in the worker's log, because it may hold anything. ``attempt``: number of this attempt, from 1.
    ``unexpected``: number of the activity's unexpected errors with this one; without it every attempt counts as one.
    """
    if isinstance(error, JourneymanError):
        seconds = _retry_after_s(error, attempt)
        return ApplicationError(
            error.message,
            error.details,
            type=error.code,
            non_retryable=not error.retryable,
            next_retry_delay=timedelta(seconds=min(float(seconds), 600.0)) if seconds else None,
        )
    if database_unavailable(error):
        return ApplicationError("The database does not answer; the step is tried again.", type="database_unavailable")
    return ApplicationError(
        f"An unexpected {type(error).__name__} stopped a step of the platform; the worker's log has the details.",
        type="internal_error",
        non_retryable=(attempt if unexpected is None else unexpected) >= timing.MAX_UNEXPECTED_ATTEMPTS,
    )


def _retry_after_s(error: JourneymanError, attempt: int) -> float | None:
    """Seconds until the next attempt: what the engine asked for, or the backoff of model calls; None for that of the activity."""
    seconds: float | None = getattr(error, "retry_after_s", None)
    if seconds is None and isinstance(error, ModelUnavailable):
        doubled = timing.MODEL_RETRY_FIRST.total_seconds() * 2 ** min(attempt - 1, 16)
        seconds = min(doubled, timing.MODEL_RETRY_LONGEST.total_seconds())
    return seconds


class UnexpectedErrors:
    """Counts the unexpected errors of each activity in this process.

    Temporal's own number of attempts also counts those that only waited, for a database or for a sandbox's memory.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    def count(self, info: activity.Info, error: Exception) -> int:
        """Number of the activity's unexpected errors, this one included if it is one."""
        key = (str(info.workflow_id), str(info.workflow_run_id), info.activity_id)
        expected = isinstance(error, JourneymanError) or database_unavailable(error)
        found = self._counts.pop(key, 0) + (0 if expected else 1)
        if found:
            self._counts[key] = found
            if len(self._counts) > _COUNTED:
                self._counts.popitem(last=False)
        return found


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, unexpected: UnexpectedErrors) -> None:  # noqa: A002  the SDK's name
        super().__init__(next)
        self._unexpected = unexpected

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  the SDK's name
        try:
            return await super().execute_activity(input)
        except (ApplicationError, CancelledError):
            raise
        except Exception as error:
            info = activity.info()
            failure = as_failure(error, info.attempt, unexpected=self._unexpected.count(info, error))
            level = logging.WARNING if isinstance(error, JourneymanError) else logging.ERROR
            if isinstance(error, SandboxElsewhere | NoRoomForSandbox):
                level = logging.DEBUG  # expected: the sandbox is on another node, or waits for memory
            logger.log(
                level,
                "activity %s failed at attempt %d: %s",
                info.activity_type,
                info.attempt,
                failure.message,
                exc_info=None if isinstance(error, JourneymanError) else error,
            )
            raise failure from error


class FailureInterceptor(Interceptor):
    """Reports errors of activities as :func:`as_failure` says, and logs each failed attempt once."""

    def __init__(self) -> None:
        self._unexpected = UnexpectedErrors()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  the SDK's name
        return _Inbound(next, self._unexpected)
