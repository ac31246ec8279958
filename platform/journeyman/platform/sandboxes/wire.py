"""The platform's side of the agent's protocol (:mod:`.agent.protocol`): requests, deadlines, and errors.

What comes from a sandbox is not trusted: frames are bounded, everything has a deadline, and a malformed answer counts
as a lost sandbox.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from journeyman.platform.kit.errors import InvalidInput, JourneymanError
from journeyman.platform.sandboxes.agent.protocol import MAX_HEADER, MAX_PAYLOAD, SIZES, pack
from journeyman.platform.sandboxes.errors import (
    ExecNotFound,
    SandboxFileError,
    SandboxLost,
    SandboxUnavailable,
    SearchRefused,
    SnapshotRefused,
    TooManyCommands,
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[], Awaitable[Streams]]
"""Opens a new connection to the agent. Raises ``OSError`` when that is not possible."""

_ERRORS: dict[str, type[JourneymanError]] = {
    "exec_not_found": ExecNotFound,
    "too_many_commands": TooManyCommands,
    "search_refused": SearchRefused,
    "snapshot_refused": SnapshotRefused,
    "process_limit": TooManyCommands,
}


def error_of(header: dict[str, Any]) -> JourneymanError:
    """The platform's error for an answer that tells of one."""
    code, message = str(header["error"]), str(header.get("message", ""))[:2000]
    if code.startswith("file_"):
        return SandboxFileError(message, kind=code.removeprefix("file_"))
    if code in _ERRORS:
        return _ERRORS[code](message)
    if code == "invalid":
        return InvalidInput(message)
    return SandboxUnavailable(f"the sandbox refused an operation: {message} ({code})")


@dataclass(slots=True)
class Call:
    """One request on its own connection."""

    sandbox_id: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    timeout_s: float

    async def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame. Raises :class:`InvalidInput` when it is over a limit."""
        try:
            frame = pack(header, payload)
        except ValueError as error:
            raise InvalidInput(str(error)) from None
        try:
            self.writer.write(frame)
            async with asyncio.timeout(self.timeout_s):
                await self.writer.drain()
        except TimeoutError:
            raise self.lost(f"it took nothing for {self.timeout_s:.0f} s") from None
        except OSError:
            # The answer that explains it may still be there to be read.
            return

    async def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame. Raises the error that it tells of, or :class:`SandboxLost`."""
        try:
            async with asyncio.timeout(self.timeout_s):
                header_size, payload_size = SIZES.unpack(await self.reader.readexactly(SIZES.size))
                if header_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
                    raise self.lost("it sent a frame that is too large")
                header = json.loads(await self.reader.readexactly(header_size))
                payload = await self.reader.readexactly(payload_size)
        except TimeoutError:
            raise self.lost(f"it gave no answer for {self.timeout_s:.0f} s") from None
        except asyncio.IncompleteReadError:
            raise self.lost("it closed the connection in the middle of an operation") from None
        except OSError as error:
            raise self.lost(f"its connection failed ({error.strerror or error})") from None
        except ValueError:
            raise self.lost("it sent a frame that is not JSON") from None
        if not isinstance(header, dict):
            raise self.lost("it sent a frame without a header")
        if "error" in header:
            raise error_of(header)
        return header, payload

    async def until_end(self) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
        """All frames up to the one with ``end``, which comes last."""
        while True:
            header, payload = await self.receive()
            yield header, payload
            if "end" in header:
                return

    async def end(self) -> dict[str, Any]:
        """The closing frame of an operation that answers with nothing else."""
        header, _ = await self.receive()
        return header

    def lost(self, why: str) -> SandboxLost:
        return SandboxLost(f"sandbox {self.sandbox_id} is gone: {why}; lease another and restore its snapshot")


@asynccontextmanager
async def calling(
    dial: Dial, sandbox_id: str, token: str, header: dict[str, Any], payload: bytes = b"", *, timeout_s: float = 30.0
) -> AsyncIterator[Call]:
    """Start a request. The connection is closed afterwards, which also ends what the agent does for it."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await dial()
    except (OSError, TimeoutError) as error:
        msg = f"sandbox {sandbox_id} is gone: it does not answer ({str(error) or 'timeout'}); lease another"
        raise SandboxLost(msg) from None
    call = Call(sandbox_id, reader, writer, timeout_s)
    try:
        await call.send({**header, "token": token}, payload)
        yield call
    finally:
        writer.close()
