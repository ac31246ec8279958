"""Wall-clock time, always in UTC."""

from datetime import UTC, datetime


def now() -> datetime:
    """The current time with time zone UTC."""
    return datetime.now(UTC)
