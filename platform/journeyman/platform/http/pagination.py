"""Pages. Cursors are opaque to clients, and positions in a newest-first order to us."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Final, NamedTuple, TypeVar

from pydantic import Field

from journeyman.platform.kit.errors import InvalidInput

T = TypeVar("T")

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100

PageLimit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
"""How many to return at most."""


class Position(NamedTuple):
    """The last row of a page."""

    created_at: datetime
    id: str


def page_of(found: Sequence[T], limit: int, position: Callable[[T], Position]) -> tuple[list[T], str | None]:
    """The first ``limit`` rows, and the cursor of the next page if ``found``, read with one row more, has another."""
    shown = list(found[:limit])
    return shown, encode_cursor(position(shown[-1])) if len(found) > limit else None


def encode_cursor(position: Position) -> str:
    raw = json.dumps([position.created_at.isoformat(), position.id], separators=(",", ":"))
    return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> Position | None:
    """Raises :class:`InvalidInput` for what this API never gave out."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        moment, id_ = json.loads(raw)
        position = Position(datetime.fromisoformat(moment), id_)
    except (binascii.Error, ValueError, TypeError) as error:
        raise _refused() from error
    if (
        position.created_at.tzinfo is None
        or not 1970 <= position.created_at.year <= 9000
        or not isinstance(id_, str)
        or not id_.isascii()
        or "\x00" in id_
    ):
        raise _refused()
    return position


def seq_in(position: Position) -> int:
    """For lists ordered by a number within a task (of an event, of a note), which stands in for the id. Raises :class:`InvalidInput`."""
    if not position.id.isdigit() or len(position.id) > 18:
        raise _refused()
    return int(position.id)


def _refused() -> InvalidInput:
    message = "The cursor is not one this API gave out. Leave it out to begin at the newest."
    return InvalidInput(message, errors=[{"field": "cursor", "message": message}])
