"""What can go wrong with a model call, as the caller sees it.

JourneymanError
├── BudgetExhausted       402  (kit) the task's budget does not allow the call; nothing was sent
├── Unavailable           503
│   └── ModelUnavailable  503  retryable: engine down, busy, silent, or its stream broke
└── ModelRejected         502  the engine answered that it will not do this; asking again changes nothing
                               until settings, the account or the conversation change
"""

from typing import Any, Final

from journeyman.platform.inference.refusals import RefusalKind
from journeyman.platform.kit.errors import JourneymanError, Unavailable


class ModelUnavailable(Unavailable):
    """The call may succeed later. ``retry_after_s`` is what the engine asked for, in seconds, or None."""

    code = "model_unavailable"

    def __init__(self, message: str, *, retry_after_s: float | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class ModelRejected(JourneymanError):
    """The engine refused the request itself. ``code`` says how: one of :data:`REFUSAL_CODES`, or ``model_refused``.

    ``limit``, in the details, is the context in tokens where the engine named it.
    """

    status = 502
    code = "model_refused"


ACCOUNT_RETRY_S: Final = 60.0
"""Seconds between two calls while the engine refuses the key or the account: it works again when a person has seen to it."""
REFUSAL_CODES: Final = {
    RefusalKind.CONTEXT_TOO_LONG: "context_too_long",
    RefusalKind.CONTENT_FILTER: "content_filtered",
    RefusalKind.ACCOUNT: "model_account",
}
"""Error codes of the kinds that mean something of their own to a task; all others are ``model_refused``."""
