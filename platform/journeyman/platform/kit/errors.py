"""One root for all errors that a person or a program is told about.

    JourneymanError
    ├── InvalidInput            422  the request says something that cannot be meant
    ├── Unauthorized            401  no key, or one that does not exist
    ├── Forbidden               403  a key that may not do this
    ├── NotFound                404  also for what belongs to another project
    ├── Conflict                409  the thing is not in a state that allows it
    ├── PayloadTooLarge         413
    ├── BudgetExhausted         402  a budget does not allow the call
    ├── RateLimited             429  retryable
    └── Unavailable             503  retryable: a part of the platform is down

``code`` is stable and meant for programs; the message is meant for people and says what happened and what to do.
"""

from typing import Any, ClassVar


class JourneymanError(Exception):
    """Root of all errors. ``details`` holds JSON-able facts that a client may act on; never a secret."""

    status: ClassVar[int] = 500
    code: str = "internal_error"
    retryable: bool = False

    def __init__(self, message: str, *, code: str | None = None, retryable: bool | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable


class InvalidInput(JourneymanError):
    status = 422
    code = "invalid_input"


class Unauthorized(JourneymanError):
    status = 401
    code = "unauthorized"


class Forbidden(JourneymanError):
    status = 403
    code = "forbidden"


class NotFound(JourneymanError):
    status = 404
    code = "not_found"


class Conflict(JourneymanError):
    status = 409
    code = "conflict"


class PayloadTooLarge(JourneymanError):
    status = 413
    code = "payload_too_large"


class BudgetExhausted(JourneymanError):
    status = 402
    code = "budget_exhausted"


class RateLimited(JourneymanError):
    status = 429
    code = "rate_limited"
    retryable = True


class Unavailable(JourneymanError):
    status = 503
    code = "unavailable"
    retryable = True
