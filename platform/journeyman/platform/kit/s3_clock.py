"""Signing S3 requests by the server's clock, so that a machine whose own is wrong can still reach the object store.

A signature carries the time, and S3 refuses one that is more than 15 minutes off. Of our own clock nothing else depends on.
"""

from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3SigV4Auth

from journeyman.platform.kit import clock
from journeyman.platform.kit.logging import get_logger

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SIGNER: Final = "journeyman-s3v4"
_BEARABLE: Final = timedelta(minutes=5)
_log = get_logger(__name__)


# The stubs leave out the one place between the taking of the time and its signing.
_Auth: Any = S3SigV4Auth


class _ServersClock(_Auth):  # type: ignore[misc]
    """``ahead`` is how far the server's clock is ahead of ours. A process has one object store."""

    ahead: ClassVar[timedelta] = timedelta()

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = (clock.now() + self.ahead).strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)


AUTH_TYPE_MAPS[_SIGNER] = _ServersClock


def follow_the_servers_clock(client: "S3Client") -> None:
    """Have the client repeat what was refused for its time, with the time that the refusal names."""
    # What a handler gives back is its decision; the stubs know of events without one only.
    register: Any = client.meta.events.register
    register("choose-signer.s3", lambda **_: _SIGNER)
    register("needs-retry.s3", _after)


def _after(response: tuple[Any, Any] | None, **_: Any) -> int | None:
    """Called after each attempt: 0 to make another at once."""
    if response is None or response[0].status_code != 403:
        return None
    try:
        ahead = parsedate_to_datetime(response[0].headers["Date"]) - clock.now()
    except (KeyError, TypeError, ValueError):
        return None
    if abs(ahead - _ServersClock.ahead) < _BEARABLE:
        return None
    _ServersClock.ahead = ahead
    _log.warning("object_store.clock_differs", seconds=round(ahead.total_seconds()))
    return 0
