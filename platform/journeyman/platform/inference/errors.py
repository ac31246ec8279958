"""What can go wrong with a model call, as the caller sees it.

JourneymanError
├── BudgetExhausted       402  (kit) the task's budget does not allow the call; nothing was sent
├── Unavailable           503
│   └── ModelUnavailable  503  retryable: engine down, busy, silent, or its stream broke
└── ModelRejected         502  the engine answered that it will not do this; asking again changes nothing
"""

from typing import Any

from journeyman.platform.kit.errors import JourneymanError, Unavailable


class ModelUnavailable(Unavailable):
    """The call may succeed later. ``retry_after_s`` is what the engine asked for, in seconds, or None."""

    code = "model_unavailable"

    def __init__(self, message: str, *, retry_after_s: float | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class ModelRejected(JourneymanError):
    """The engine refused the request itself (for example a context that is too long, or an unknown model)."""

    status = 502
    code = "model_rejected"
