"""Which errors Temporal tries again, decided in one place for all activities."""

import logging
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from journeyman.platform.inference.errors import ModelUnavailable
from journeyman.platform.kit.errors import JourneymanError
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.sandboxes.errors import SandboxElsewhere
from journeyman.workflows import timing

logger = logging.getLogger(__name__)


def as_failure(error: Exception, attempt: int) -> ApplicationError:
    """The failure to report for an activity's error: retryable if the cause may pass by itself, final otherwise.

    An unreachable database is retryable without limit. An unexpected error is tried ``timing.MAX_UNEXPECTED_ATTEMPTS`` times;
    its text stays in the worker's log, because it may hold anything. ``attempt``: number of this attempt, from 1.
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
        non_retryable=attempt >= timing.MAX_UNEXPECTED_ATTEMPTS,
    )


def _retry_after_s(error: JourneymanError, attempt: int) -> float | None:
    """Seconds until the next attempt: what the engine asked for, or the backoff of model calls; None for that of the activity."""
    seconds: float | None = getattr(error, "retry_after_s", None)
    if seconds is None and isinstance(error, ModelUnavailable):
        doubled = timing.MODEL_RETRY_FIRST.total_seconds() * 2 ** min(attempt - 1, 16)
        seconds = min(doubled, timing.MODEL_RETRY_LONGEST.total_seconds())
    return seconds


class _Inbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  the SDK's name
        try:
            return await super().execute_activity(input)
        except (ApplicationError, CancelledError):
            raise
        except Exception as error:
            info = activity.info()
            failure = as_failure(error, info.attempt)
            level = logging.WARNING if isinstance(error, JourneymanError) else logging.ERROR
            if isinstance(error, SandboxElsewhere):
                level = logging.DEBUG  # expected: the workflow sends the activity to the sandbox's node
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

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  the SDK's name
        return _Inbound(next)
