"""One call on its way through the gateway: reserved, sent, passed back, settled."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Final

import aiohttp

from journeyman.platform.inference.gateway import metrics
from journeyman.platform.inference.gateway.authentication import Caller
from journeyman.platform.inference.gateway.forms import MAX_RETRIES, EngineForms
from journeyman.platform.inference.gateway.relay import Relay
from journeyman.platform.inference.gateway.routing import ParsedRequest, Upstream
from journeyman.platform.inference.gateway.settlement import Settlements
from journeyman.platform.inference.gateway.sse import (
    StreamScanner,
    event_of,
    is_error,
    is_json,
    stream_of_completion,
    usage_of_completion,
)
from journeyman.platform.inference.gateway.upstream import (
    EngineDropped,
    EngineRefused,
    EngineSilent,
    EngineUnreachable,
    UpstreamPool,
)
from journeyman.platform.inference.gateway.wire import JSON_TYPE, MAX_BODY, problem
from journeyman.platform.kit.errors import JourneymanError, Unavailable
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.ledger.service import (
    Answer,
    Kind,
    LedgerCall,
    Reservation,
)
from journeyman.platform.ledger.usage import TokenUsage

_STREAM_TYPE: Final = "text/event-stream"
_STREAM_STARTS: Final = (b"data:", b"event:", b":")
_OK: Final = 200
_LONGEST_CALL: Final = 10
"""Times the longest silence: a call that lasts longer is given up."""
_COUNTED_TOO_LITTLE: Final = 8
"""A prompt that the engine counts as less than this part of the estimate was counted without what its cache held."""
_WORTH_DOUBT: Final = 1000
"""Tokens; the estimate of a shorter prompt is too rough to doubt the engine."""
_log = get_logger(__name__)


class EngineBroke(Unavailable):
    """The engine's answer ended before it was whole."""

    code = "engine_stream_broken"


class CallEnded(Unavailable):
    """The call was given up while a listener was still there."""

    code = "call_ended"


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


class Call:
    """A call, which runs as a task of its own: it does not end with the connection that asked for it.

    However it ends, by an error, by :meth:`give_up`, or by this process going down, its ledger entry is closed exactly once.
    A step that was answered and paid before gets the same bytes again, without a call.
    """

    def __init__(self, exchange: Exchange, pool: UpstreamPool, settlements: Settlements, forms: EngineForms) -> None:
        self.exchange = exchange
        self.relay = Relay(keep=exchange.digest is not None)
        self._pool = pool
        self._settlements = settlements
        self._forms = forms
        self._scanner = StreamScanner(hide_usage=exchange.request.hide_usage)
        self._early: list[bytes] = []
        """Events that came before any content."""
        self._reservation: Reservation | None = None
        self._sent = 0.0
        self._task = asyncio.create_task(self._forward())
        self._task.add_done_callback(self._ended)

    @property
    def over(self) -> bool:
        return self._task.done()

    def give_up(self) -> None:
        """Close the engine's stream; what it has sent is settled by estimate."""
        self._task.cancel()

    def when_over(self, forget: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: forget())

    async def wait(self, timeout_s: float) -> bool:
        """Whether it is over within that time, its ledger entry closed."""
        await asyncio.wait({self._task}, timeout=timeout_s)
        return self._task.done()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._fail(CallEnded("The call was given up before its answer was whole; it can be repeated."))
        elif isinstance(error := task.exception(), JourneymanError):
            self._fail(error)
        elif error is not None:
            _log.error("gateway.failed", path=self.exchange.path, exc_info=error)
            self._fail(JourneymanError("The gateway failed; its log says why.", retryable=True))

    def _fail(self, error: JourneymanError) -> None:
        self.relay.fail(error, event_of(problem(error, self.exchange.caller.request_id)))

    async def _forward(self) -> None:
        exchange = self.exchange
        call = exchange.request
        reservation = await self._settlements.reserve(
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
            self._whole(reservation.content_type, reservation.body, {"x-journeyman-replayed": "true"})
            return
        self._reservation = reservation
        self._sent = time.perf_counter()
        metrics.ADDED_SECONDS.observe(self._sent - exchange.received)
        try:
            await self._ask_in_its_form()
        except (EngineUnreachable, EngineDropped, EngineRefused):
            if self._close("rejected"):
                await self._settlements.release(reservation)
            raise
        except EngineSilent:
            if self._close("ambiguous"):
                await self._settlements.leave_ambiguous(reservation)
            raise
        finally:
            # What is still open here was given up, or cut off by this process's own end.
            await self._settle("client_gone", self._scanner.usage)

    async def _ask_in_its_form(self) -> None:
        """Send the call; when the engine refuses its form, send it again in one that the engine takes."""
        call = self.exchange.request
        key = (self.exchange.caller.project_id, self.exchange.upstream.base_url, call.model)
        form = self._forms.of(*key)
        cap: int | None = None
        for retries in range(MAX_RETRIES + 1):
            sent = form.apply(call.body, cap) if self.exchange.kind == "model" else call.body
            try:
                await self._ask(sent)
                return
            except EngineRefused as refused:
                if retries == MAX_RETRIES or self.exchange.kind != "model" or self.relay.begun:
                    raise
                learnt = form.learn(refused.refusal, sent)
                if learnt is False:
                    raise
                cap = cap if learnt is True else learnt
                self._forms.keep(*key, form)
                metrics.ADAPTATIONS.labels(refused.refusal.kind.value).inc()
                _log.info(
                    "engine.form_learnt",
                    model=call.model,
                    refusal=refused.refusal.kind.value,
                    parameter=refused.refusal.parameter,
                    limit=refused.refusal.limit,
                    task_id=self.exchange.caller.task_id,
                )

    async def _ask(self, body: bytes) -> None:
        exchange = self.exchange
        async with self._pool.post(exchange.upstream, exchange.path, body, exchange.headers) as response:
            try:
                first = await response.content.readany()
            except TimeoutError as error:
                raise EngineSilent(
                    "The model's server took the call and then said nothing; the call can be repeated."
                ) from error
            except aiohttp.ClientError as error:
                raise EngineDropped(
                    "The model's server closed the connection before it answered; the call can be repeated."
                ) from error
            # The type alone does not tell: some engines stream as text/plain, and some answer a stream with one JSON object.
            if response.content_type == _STREAM_TYPE or first.lstrip().startswith(_STREAM_STARTS):
                await self._take_stream(response, first)
            else:
                await self._take_whole(response, first)

    async def _take_stream(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        scanner = self._scanner
        relay = self.relay
        failure: str | None = None
        early = 0
        try:
            async for data in self._within_bounds(response, first):
                events = scanner.feed(data)
                if events and (scanner.begun or relay.begun or scanner.held_bytes):
                    self._pass_on(events)
                elif events:
                    # Not yet an answer: an engine may still refuse the call, which may then be sent in another form.
                    self._early.append(events)
                    early += len(events)
                if scanner.held_bytes + relay.held_bytes + early > MAX_BODY:
                    failure = "sent more than anybody can take"
                    break
                if scanner.done or scanner.error is not None:
                    break
            else:
                if events := scanner.end():
                    self._pass_on(events)
        except TimeoutError:
            failure = "fell silent"
        except aiohttp.ClientError:
            failure = "dropped the connection"
        if scanner.error is not None:
            await self._refused_in_stream(scanner.error)
        if failure is None and not scanner.whole:
            failure = (
                "ended the stream without a finish reason" if scanner.begun else "ended the stream without an answer"
            )
        if failure is None:
            self._pass_on(b"")
            kept = self.exchange.digest is not None
            await self._settle("ok", scanner.usage, answer=Answer(_STREAM_TYPE, relay.body) if kept else None)
            relay.end()
            return
        await self._settle("broken", scanner.usage)
        raise EngineBroke(f"The model's server {failure} in the middle of its answer; the call can be repeated.")

    async def _refused_in_stream(self, error: str) -> None:
        """Raise what an error event says: as a refusal where nothing of an answer came before it."""
        refused = self._pool.refusal(_OK, error)
        if not self.relay.begun:
            self._early.clear()
            self._scanner = StreamScanner(hide_usage=self.exchange.request.hide_usage)
            raise refused
        await self._settle("broken", self._scanner.usage)
        raise EngineBroke(f"The model's server gave up in the middle of its answer: {refused.message}")

    async def _within_bounds(self, response: aiohttp.ClientResponse, first: bytes) -> AsyncIterator[bytes]:
        """The pieces of the stream. Raises :class:`TimeoutError` when nothing but comments comes, or the stream does not end.

        The pool's own limit of silence sees bytes alone, and comments that keep a connection alive are bytes.
        """
        silence = self._pool.idle_timeout_s
        heard = time.monotonic()
        ends = heard + silence * _LONGEST_CALL
        yield first
        async for data in response.content.iter_any():
            yield data
            now = time.monotonic()
            if self._scanner.data_seen:
                heard = now
            if now - heard > silence or now > ends:
                raise TimeoutError

    def _pass_on(self, events: bytes) -> None:
        if not self.relay.begun:
            self._begin_stream()
        pieces = b"".join((*self._early, events))
        self._early.clear()
        if pieces:
            self.relay.write(pieces)

    async def _take_whole(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        try:
            body = first
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
        if is_error(body):
            raise self._pool.refusal(_OK, body.decode("utf-8", "replace"))
        if not is_json(body):
            await self._settle("broken", TokenUsage())
            raise EngineBroke(
                "The model's server answered with something that is no JSON, for example a web page; check "
                "JOURNEYMAN_MODEL_BASE_URL. The call can be repeated."
            )
        content_type = JSON_TYPE
        usage = usage_of_completion(body)
        size = len(body)
        if self.exchange.request.stream:
            events = stream_of_completion(body)
            if events is None:
                await self._settle("broken", usage, completion_bytes=size)
                raise EngineBroke(
                    "The model's server answered with JSON that is no chat completion; the call can be repeated."
                )
            body, content_type = self._scanner.feed(events), _STREAM_TYPE
        answer = Answer(content_type, body) if self.exchange.digest is not None else None
        await self._settle("ok", usage, completion_bytes=size, answer=answer)
        self._whole(content_type, body)

    def _begin_stream(self) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", "x-request-id": self._request_id()}
        self.relay.begin(200, _STREAM_TYPE, headers)

    def _whole(self, content_type: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        more = {"content-length": str(len(body)), "x-request-id": self._request_id(), **(headers or {})}
        self.relay.begin(200, content_type, more)
        self.relay.write(body)
        self.relay.end()

    def _close(self, outcome: str) -> Reservation | None:
        """The reservation, if it was still open; it is not any more."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            metrics.CALLS.labels(self.exchange.kind, outcome).inc()
        return reservation

    async def _settle(
        self, outcome: str, usage: TokenUsage | None, *, completion_bytes: int = 0, answer: Answer | None = None
    ) -> None:
        reservation = self._close(outcome)
        if reservation is None:
            return
        exchange = self.exchange
        seconds = time.perf_counter() - self._sent
        expected = exchange.request.prompt_tokens
        estimated = usage is None
        if (
            usage is not None
            and exchange.kind == "model"
            and expected >= _WORTH_DOUBT
            and usage.prompt_tokens * _COUNTED_TOO_LITTLE < expected
        ):
            usage = replace(usage, prompt_tokens=expected)
            estimated = True
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
        await self._settlements.settle(reservation, usage, estimated=estimated, seconds=seconds, answer=answer)

    def _request_id(self) -> str:
        return self.exchange.caller.request_id.encode("ascii", "replace").decode()
