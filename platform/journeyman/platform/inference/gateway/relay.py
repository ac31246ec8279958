"""An answer on its way from one call to whoever listens: its caller, and the one who takes over from a dead caller."""

import asyncio

from journeyman.platform.inference.gateway.wire import Headers, Send, start
from journeyman.platform.kit.errors import JourneymanError


class Relay:
    """Takes what the engine sends, never waits for a listener, and gives it to each of them.

    With ``keep`` each listener gets the answer from its beginning, however late it comes; without, there is one
    listener, and what it has been sent is dropped.
    """

    def __init__(self, *, keep: bool) -> None:
        self.begun = False
        self.held_bytes = 0
        self._keep = keep
        self._status = 200
        self._content_type = ""
        self._headers: Headers = {}
        self._parts: list[bytes] = []
        self._over = False
        self._failure: JourneymanError | None = None
        self._news = asyncio.Event()

    @property
    def body(self) -> bytes:
        """All that was written; of use with ``keep`` only."""
        return b"".join(self._parts)

    def begin(self, status: int, content_type: str, headers: Headers) -> None:
        self.begun = True
        self._status, self._content_type, self._headers = status, content_type, headers
        self._tell()

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self.held_bytes += len(data)
        self._tell()

    def end(self) -> None:
        self._over = True
        self._tell()

    def fail(self, error: JourneymanError, event: bytes) -> None:
        """End without an end: an error response where nothing has begun, the ``event`` that tells of it where something has."""
        if self._over:
            return
        if self.begun:
            # Explicit, and never [DONE]: nobody must take a part of an answer for the whole.
            self.write(event)
        else:
            self._failure = error
        self.end()

    async def pass_to(self, send: Send) -> None:
        """Send the whole answer on, as it comes. Raises the error of a call that failed before it began."""
        position = 0
        started = False
        while True:
            news = self._news
            if self._failure is not None:
                raise self._failure
            if self.begun and not started:
                started = True
                await start(send, self._status, self._content_type, self._headers)
            parts = self._parts[position:]
            last = self._over
            if self._keep:
                position += len(parts)
            else:
                self._parts.clear()
                self.held_bytes = 0
            if started and parts:
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
            if last:
                await send({"type": "http.response.body", "body": b""})
                return
            await news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
