"""Which errors Temporal tries again, decided in one place for all activities."""

import logging
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from journeyman.platform.kit.errors import JourneymanError
from journeyman.platform.kit.outages import database_unavailable
from journeyman.platform.sandboxes.errors import SandboxElsewhere
from journeyman.workflows import timing

logger = logging.getLogger(__name__)


def as_failure(error: Exception, attempt: int) -> ApplicationError:
    """The failure to report: retryable for what passes by itself, final for what does not.

    A database that is away counts as passing, however long. An error that nobody foresaw is tried
    ``timing.MAX_UNEXPECTED_ATTEMPTS`` times; its text stays in the worker's log, because it may hold anything.
    """
    if isinstance(error, JourneymanError):
        seconds = getattr(error, "retry_after_s", None)
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
                level = logging.DEBUG  # nothing is wrong, and it may take many attempts
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
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  the SDK's name
        return _Inbound(next)
