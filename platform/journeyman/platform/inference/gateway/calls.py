"""One call on its way through the gateway: reserved, sent, passed back, settled."""

import time
from dataclasses import dataclass
from typing import Final

import aiohttp

from journeyman.platform.inference.gateway import metrics
from journeyman.platform.inference.gateway.authentication import Caller
from journeyman.platform.inference.gateway.routing import ParsedRequest, Upstream
from journeyman.platform.inference.gateway.settlement import Settlements
from journeyman.platform.inference.gateway.sse import StreamScanner, error_event, usage_of_completion
from journeyman.platform.inference.gateway.upstream import EngineRefused, EngineSilent, EngineUnreachable, UpstreamPool
from journeyman.platform.inference.gateway.wire import MAX_BODY, Send, problem, respond, start
from journeyman.platform.inference.ledger import Answer, Kind, LedgerCall, Reservation
from journeyman.platform.inference.port import TokenUsage
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.logging import get_logger

_STREAM_TYPE: Final = "text/event-stream"
_log = get_logger(__name__)


class EngineBroke(Unavailable):
    """The engine's answer ended before it was whole."""

    code = "engine_stream_broken"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is to be sent where, and on whose account."""

    kind: Kind
    upstream: Upstream
    path: str
    request: ParsedRequest
    caller: Caller
    headers: dict[str, str]
    """For the engine, besides its own."""
    received: float
    """``time.perf_counter()`` when the whole request was there."""
    digest: str | None = None
    """Of the request, when its answer is to be kept until the caller has stored it."""


async def forward(exchange: Exchange, send: Send, pool: UpstreamPool, settlements: Settlements) -> None:
    """Make the call and pass the answer on.

    However it ends, by an error, by a caller who hangs up, or by this process going down, the reservation is closed.
    Errors that should become an error response are raised; nothing has been sent to the caller then.

    A caller who died with the answer in its hands and comes back for it gets the same bytes again, without a call.
    """
    call = exchange.request
    reservation = await settlements.reserve(
        LedgerCall(
            project_id=exchange.caller.project_id,
            step_key=exchange.caller.request_id,
            attempt=exchange.caller.attempt,
            kind=exchange.kind,
            model=call.model,
            prompt_tokens=call.prompt_tokens,
            max_completion_tokens=call.max_completion_tokens,
            task_id=exchange.caller.task_id,
            thread_id=exchange.caller.thread_id,
            digest=exchange.digest,
        )
    )
    if isinstance(reservation, Answer):
        metrics.REPLAYS.inc()
        _log.info("model.answer_replayed", request_id=exchange.caller.request_id, task_id=exchange.caller.task_id)
        headers = {"x-request-id": _header_value(exchange.caller), "x-journeyman-replayed": "true"}
        await respond(send, 200, reservation.body, reservation.content_type, headers=headers)
        return
    metrics.ADDED_SECONDS.observe(time.perf_counter() - exchange.received)
    await _Call(exchange, reservation, send, settlements).run(pool)


class _Call:
    """A reserved call. Its ledger entry is closed exactly once, by whichever of its ends comes first."""

    def __init__(self, exchange: Exchange, reservation: Reservation, send: Send, settlements: Settlements) -> None:
        self._exchange = exchange
        self._reservation = reservation
        self._send = send
        self._settlements = settlements
        self._started = time.perf_counter()
        self._scanner = StreamScanner(hide_usage=exchange.request.hide_usage)
        self._kept: list[bytes] = []
        self._open = True

    async def run(self, pool: UpstreamPool) -> None:
        exchange = self._exchange
        try:
            async with pool.post(exchange.upstream, exchange.path, exchange.request.body, exchange.headers) as response:
                if response.content_type == _STREAM_TYPE:
                    await self._pass_stream(response)
                else:
                    await self._pass_whole(response)
        except (EngineUnreachable, EngineRefused):
            if self._close("rejected"):
                await self._settlements.release(self._reservation)
            raise
        except EngineSilent:
            if self._close("ambiguous"):
                await self._settlements.leave_ambiguous(self._reservation)
            raise
        finally:
            # What is still open here was cut off by the caller or by this process's own end.
            await self._settle("client_gone", self._scanner.usage)

    async def _pass_stream(self, response: aiohttp.ClientResponse) -> None:
        scanner = self._scanner
        send = self._send
        keep = self._exchange.digest is not None
        begun = False
        failure: str | None = None
        try:
            async for data in response.content.iter_any():
                events = scanner.feed(data)
                if not events:
                    if scanner.held_bytes > MAX_BODY:
                        failure = "sent an event that is too large"
                        break
                    continue
                if not begun:
                    begun = True
                    await self._begin(200, _STREAM_TYPE)
                if keep:
                    self._kept.append(events)
                await send({"type": "http.response.body", "body": events, "more_body": True})
        except TimeoutError:
            failure = "fell silent"
        except aiohttp.ClientError:
            failure = "dropped the connection"
        if failure is None and not scanner.whole:
            failure = "ended the stream without a finish reason"
        if failure is None:
            answer = Answer(_STREAM_TYPE, b"".join(self._kept)) if keep and not scanner.errored else None
            await self._settle("ok", scanner.usage, answer=answer)
            if not begun:
                await self._begin(200, _STREAM_TYPE)
            await send({"type": "http.response.body", "body": b""})
            return
        await self._settle("broken", scanner.usage)
        error = EngineBroke(f"The model's server {failure} in the middle of its answer; the call can be repeated.")
        if not begun:
            raise error
        # An explicit error, never [DONE]: nobody must take a part of an answer for the whole.
        event = error_event(problem(error, self._exchange.caller.request_id))
        await send({"type": "http.response.body", "body": event})

    async def _pass_whole(self, response: aiohttp.ClientResponse) -> None:
        try:
            body = await response.content.read(MAX_BODY + 1)
            while not response.content.at_eof() and len(body) <= MAX_BODY:
                body += await response.content.read(MAX_BODY + 1 - len(body))
        except (TimeoutError, aiohttp.ClientError) as error:
            await self._settle("broken", None)
            raise EngineBroke(
                "The model's server broke off in the middle of its answer; the call can be repeated."
            ) from error
        if len(body) > MAX_BODY:
            await self._settle("broken", None)
            raise EngineBroke(f"The model's answer is larger than {MAX_BODY // (1024 * 1024)} MiB.", retryable=False)
        content_type = response.headers.get("Content-Type", "application/json")
        answer = Answer(content_type, body) if self._exchange.digest is not None else None
        await self._settle("ok", usage_of_completion(body), completion_bytes=len(body), answer=answer)
        await respond(
            self._send, 200, body, content_type, headers={"x-request-id": _header_value(self._exchange.caller)}
        )

    async def _begin(self, status: int, content_type: str) -> None:
        headers = {
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "x-request-id": _header_value(self._exchange.caller),
        }
        await start(self._send, status, content_type, headers)

    def _close(self, outcome: str) -> bool:
        """Whether the entry was still open; it is not any more."""
        if not self._open:
            return False
        self._open = False
        metrics.CALLS.labels(self._exchange.kind, outcome).inc()
        return True

    async def _settle(
        self, outcome: str, usage: TokenUsage | None, *, completion_bytes: int = 0, answer: Answer | None = None
    ) -> None:
        if not self._close(outcome):
            return
        exchange = self._exchange
        seconds = time.perf_counter() - self._started
        estimated = usage is None
        if usage is None:
            completion = 0 if exchange.kind == "embedding" else completion_bytes // 4
            usage = TokenUsage(
                prompt_tokens=exchange.request.prompt_tokens,
                completion_tokens=completion or self._scanner.estimated_completion_tokens(),
            )
        flag = str(estimated).lower()
        metrics.TOKENS.labels(exchange.kind, "input", flag).inc(usage.prompt_tokens)
        metrics.TOKENS.labels(exchange.kind, "output", flag).inc(usage.completion_tokens)
        metrics.TOKENS.labels(exchange.kind, "cached_input", flag).inc(usage.cached_tokens)
        _log.debug(
            "model.call",
            outcome=outcome,
            model=exchange.request.model,
            request_id=exchange.caller.request_id,
            task_id=exchange.caller.task_id,
            seconds=round(seconds, 4),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            estimated=estimated,
        )
        await self._settlements.settle(self._reservation, usage, estimated=estimated, seconds=seconds, answer=answer)


def _header_value(caller: Caller) -> str:
    return caller.request_id.encode("ascii", "replace").decode()
