"""Reading server-sent events as the standard says, line by line."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Message:
    """One message; a comment has the event ``comment`` and its text as data."""

    event: str
    data: str
    id: str | None = None

    @property
    def seq(self) -> int:
        assert self.id is not None
        return int(self.id)

    def json(self) -> Any:
        return json.loads(self.data)


async def messages(response: httpx.Response) -> AsyncIterator[Message]:
    event, data, id_ = "message", [], None
    async for line in response.aiter_lines():
        if line.startswith(":"):
            yield Message("comment", line[1:].strip())
        elif line.startswith("id: "):
            id_ = line[4:]
        elif line.startswith("event: "):
            event = line[7:]
        elif line.startswith("data: "):
            data.append(line[6:])
        elif line == "" and data:
            yield Message(event, "\n".join(data), id_)
            event, data, id_ = "message", [], None


@asynccontextmanager
async def following(
    client: httpx.AsyncClient, task_id: str, *, last_event_id: int | None = None, **query: Any
) -> AsyncIterator[AsyncIterator[Message]]:
    """A stream's messages."""
    headers = {} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}
    path = f"/v1/tasks/{task_id}/events/stream"
    async with client.stream("GET", path, params=query, headers=headers, timeout=30) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield messages(response)


async def events_until_end(client: httpx.AsyncClient, task_id: str, **where: Any) -> list[Message]:
    """All events of a stream up to its ``end``, which must come."""
    found: list[Message] = []
    async with following(client, task_id, **where) as stream:
        async for message in stream:
            if message.event == "end":
                return found
            if message.event != "comment":
                found.append(message)
    raise AssertionError(f"the stream ended without saying so, after {len(found)} events")
