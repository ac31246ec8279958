"""Who calls: the platform's own workers with the internal secret, or a project with one of its API keys."""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from journeyman.platform.inference.gateway.wire import Headers
from journeyman.platform.inference.port import (
    HEADER_ATTEMPT,
    HEADER_PROJECT,
    HEADER_REQUEST,
    HEADER_TASK,
    HEADER_THREAD,
)
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import InvalidInput, Unauthorized, Unavailable
from journeyman.platform.kit.ids import new_id
from journeyman.platform.tenancy.service import authenticate

KeyCheck = Callable[[str], Awaitable[str | None]]
"""Gives the id of the project that an API key belongs to, or None for a key that is unknown or revoked."""

_MAX_HEADER = 300


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose account a call goes. ``request_id`` is the step key for the platform's own calls."""

    project_id: str
    request_id: str
    attempt: int
    task_id: str | None
    thread_id: str | None
    internal: bool
    """One of the platform's own processes, which names the step that the call belongs to."""


class Authentication:
    def __init__(self, internal_secret: str, check_key: KeyCheck) -> None:
        self._internal_secret = internal_secret.encode()
        self._check_key = check_key

    async def caller_of(self, headers: Headers) -> Caller:
        """Raises :class:`Unauthorized`, or :class:`InvalidInput` for headers that cannot be meant."""
        project_id = await self.check(headers)
        internal = project_id is None
        if internal:
            project_id = _header(headers, HEADER_PROJECT)
        if project_id is None:
            raise InvalidInput(f"A call of the platform's own needs the header {HEADER_PROJECT}.")
        request_id = _header(headers, HEADER_REQUEST)
        return Caller(
            project_id=project_id,
            request_id=request_id or new_id("request"),
            attempt=_attempt(_header(headers, HEADER_ATTEMPT)),
            task_id=_header(headers, HEADER_TASK),
            thread_id=_header(headers, HEADER_THREAD),
            internal=internal and request_id is not None,
        )

    async def check(self, headers: Headers) -> str | None:
        """The project whose key was sent; None for the platform itself. Raises :class:`Unauthorized`."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("Send 'Authorization: Bearer <API key>'.")
        if hmac.compare_digest(key.encode("utf-8", "surrogatepass"), self._internal_secret):
            return None
        project_id = await self._check_key(key)
        if project_id is None:
            raise Unauthorized("This API key does not exist or was revoked.")
        return project_id


def api_key_check(database: Database) -> KeyCheck:
    """Looks keys up in the table of API keys."""

    async def check(key: str) -> str | None:
        try:
            async with database.transaction() as session:
                return (await authenticate(session, key)).project_id
        except Unauthorized:
            return None
        except (SQLAlchemyError, OSError) as error:
            raise Unavailable(
                "API keys cannot be checked because the database does not answer; repeat later."
            ) from error

    return check


def _header(headers: Headers, name: str) -> str | None:
    value = headers.get(name.lower(), "").strip()
    if len(value) > _MAX_HEADER:
        raise InvalidInput(f"The header {name} has more than {_MAX_HEADER} characters.")
    if not value.isprintable():
        raise InvalidInput(f"The header {name} contains characters that cannot be printed.")
    return value or None


def _attempt(value: str | None) -> int:
    if value is None:
        return 1
    if not value.isascii() or not value.isdecimal() or not 1 <= int(value) <= 1_000_000_000:
        raise InvalidInput(f"The header {HEADER_ATTEMPT} must be a number from 1.")
    return int(value)
