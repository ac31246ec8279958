"""Commands with a client's key: sent twice, done once."""

import hashlib
import json
import re
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.http.fields import refuse
from journeyman.platform.idempotency import repository
from journeyman.platform.kit.errors import Conflict

_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


async def claim(
    session: AsyncSession, project_id: str, key: str | None, command: str, request: Any, subject_id: str
) -> str | None:
    """Take the key for this command; if it was taken before, the id of what that made.

    ``command`` names the operation and its target, ``request`` is its JSON-able content. ``subject_id`` is what the command
    makes or changes if it is the first. Without a key, every command is the first. Waits for one that holds the key
    and has not committed yet. Raises :class:`InvalidInput` for a malformed key, :class:`Conflict` with code
    ``idempotency_key_reused`` for one that was used for something else.
    """
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise refuse("Idempotency-Key", "must be 1 to 255 visible ASCII characters.")
    digest = request_digest(command, request)
    if await repository.take(session, project_id, key, digest, subject_id):
        return None
    earlier = await repository.get(session, project_id, key)
    if earlier.request_digest != digest:
        raise Conflict(
            "This Idempotency-Key was used before, with another request. Repeat that request, or take a new key.",
            code="idempotency_key_reused",
            subject_id=earlier.subject_id,
        )
    return earlier.subject_id


async def amend(session: AsyncSession, project_id: str, key: str | None, subject_id: str) -> None:
    """Note that the command with this key made or changed something else than was claimed. Without a key, nothing."""
    if key is not None:
        await repository.set_subject(session, project_id, key, subject_id)


def request_digest(command: str, request: Any) -> str:
    """Of what the request says, whatever the order of its fields and its white space."""
    text = json.dumps([command, request], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
