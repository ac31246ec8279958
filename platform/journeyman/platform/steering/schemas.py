"""Messages from people as the API takes them and shows them."""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel

from journeyman.platform.http.fields import (
    Input,
    PlainText,
    at_most_bytes,
    not_blank,
)
from journeyman.platform.steering.models import PersonMessage

MAX_TEXT: Final = 64 * 1024


class SendMessage(Input):
    """What a person says to the agents of a running task."""

    text: Annotated[PlainText, AfterValidator(not_blank), at_most_bytes(MAX_TEXT)]
    mode: Literal["queue", "interrupt"] = "queue"
    """``queue``: read at the next step. ``interrupt``: the call in progress is cancelled first."""


class MessageView(BaseModel):
    """A message and how far it has come."""

    id: str
    task_id: str
    number: int
    text: str
    mode: str
    state: str
    """``received``, ``delivered`` (an agent has it before it) or ``acted_on`` (an agent has answered after reading it)."""
    author: str
    created_at: datetime
    delivered_at: datetime | None
    acted_on_at: datetime | None
    set_aside_at: datetime | None
    """When the task was rewound to before the message: agents are not told any more. Send it again if it still holds."""

    @classmethod
    def of(cls, message: PersonMessage) -> "MessageView":
        return cls(
            id=message.id,
            task_id=message.task_id,
            number=message.seq,
            text=message.text,
            mode=message.mode,
            state=message.state,
            author=message.author,
            created_at=message.created_at,
            delivered_at=message.delivered_at,
            acted_on_at=message.acted_on_at,
            set_aside_at=message.set_aside_at,
        )


class MessagePage(BaseModel):
    """The oldest first. ``next_after`` is the number to ask after for more, null on the last page."""

    data: list[MessageView]
    next_after: int | None
