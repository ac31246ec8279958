"""The OpenAI-compatible driver of the model port: chat completions, streamed, through the official SDK."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

# For the SDK, which asks it for its errors at the end of each stream as soon as it is among the loaded modules: while another
# thread is only half way through importing it (for qdrant-client), answers would be lost to that.
import httpx  # noqa: F401
import openai

from journeyman.platform.inference.assembly import StreamAssembler
from journeyman.platform.inference.errors import ACCOUNT_RETRY_S, REFUSAL_CODES, ModelRejected, ModelUnavailable
from journeyman.platform.inference.port import (
    CallIdentity,
    ModelAnswer,
    ModelRequest,
    OnDelta,
)
from journeyman.platform.inference.redaction import error_text
from journeyman.platform.inference.refusals import RefusalKind
from journeyman.platform.kit import clock
from journeyman.platform.kit.errors import BudgetExhausted, JourneymanError
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import inject, model_span
from journeyman.platform.ledger.usage import TokenUsage

_RETRYABLE_STATUS: Final = frozenset({408, 409, 425, 429})
_CONNECT_TIMEOUT_S: Final = 5.0
_CANCEL_TIMEOUT_S: Final = 2.0
_log = get_logger(__name__)


class OpenAIModelEngine:
    """Speaks to ``base_url`` (which ends in ``/v1``). One instance serves any number of concurrent calls."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._secrets: Sequence[str] = (api_key,)
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            max_retries=0,
            # The gateway is one of the platform's own: a proxy for the outer world is not meant for it.
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> "OpenAIModelEngine":
        """The engine that the platform's own workers use: the gateway, under the internal secret."""
        return cls(f"{settings.gateway_url.rstrip('/')}/v1", settings.internal_secret.get_secret_value())

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelAnswer:
        with model_span(
            request.model,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            journeyman__request_id=request.identity.request_id,
            journeyman__attempt=request.identity.attempt,
        ) as span:
            answer = await self._ask(request, on_delta, span.first_token)
            usage = answer.usage or TokenUsage()
            span.answered(
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                cached_input_tokens=usage.cached_tokens,
                response_model=answer.model,
                finish_reasons=(answer.finish_reason,),
            )
            return answer

    async def cancel(self, identity: CallIdentity) -> None:
        try:
            await self._client.post(
                "/chat/completions/cancel",
                cast_to=object,
                options={"headers": {**inject(), **identity.headers()}, "timeout": _CANCEL_TIMEOUT_S},
            )
        except openai.APIError as error:
            _log.warning("model.cancel_failed", request_id=identity.request_id, reason=type(error).__name__)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, request: ModelRequest, on_delta: OnDelta | None, on_first: Callable[[], None]) -> ModelAnswer:
        started = time.perf_counter()
        assembler = StreamAssembler(request.identity.request_id, on_delta)
        ttft: float | None = None
        try:
            async with await self._open(request) as stream:
                async for chunk in stream:
                    if assembler.feed(_as_mapping(chunk)) and ttft is None:
                        ttft = time.perf_counter() - started
                        on_first()
        except openai.APIStatusError as error:
            raise self._status_error(error) from error
        except openai.APITimeoutError as error:
            raise ModelUnavailable(
                f"The model said nothing for {request.idle_timeout_s:g} s; the call was given up and can be repeated.",
                code="model_timeout",
            ) from error
        except openai.APIConnectionError as error:
            message = (
                "The connection to the model broke while it was answering; the partial answer was thrown away."
                if ttft is not None
                else "The platform's inference gateway cannot be reached, through which models are called; the call can be "
                "repeated."
            )
            raise ModelUnavailable(message, reason=type(error.__cause__ or error).__name__) from error
        except openai.APIError as error:
            raise self._stream_error(error) from error
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            # The SDK hands over what the engine sent: lines that are no JSON, or JSON of another shape.
            raise ModelUnavailable(
                "The model's server sent something that is no chat completion chunk; the answer was thrown away.",
                code="model_stream_malformed",
            ) from error
        if assembler.finish_reason is None:
            raise ModelUnavailable(
                "The model's stream ended before the answer did; the partial answer was thrown away.",
                code="model_stream_broken",
            )
        duration = time.perf_counter() - started
        return ModelAnswer(
            text=assembler.text,
            reasoning=assembler.reasoning,
            tool_calls=assembler.tool_calls(),
            usage=assembler.usage,
            finish_reason=assembler.finish_reason,
            model=assembler.model,
            request_id=request.identity.request_id,
            ttft_s=ttft if ttft is not None else duration,
            duration_s=duration,
        )

    async def _open(self, request: ModelRequest) -> openai.AsyncStream[object]:
        headers = {**request.headers, **inject(), **request.identity.headers()}
        return await self._client.post(
            "/chat/completions",
            # As the engine sent them, its own fields such as reasoning_content too: half of the CPU of the SDK's types.
            cast_to=object,
            # Bytes of our own: the SDK's typed path walks every message (measured: 140 ms of event loop for a
            # conversation of 400 turns), and its encoder would parse what is stored as JSON already.
            content=request_body(request),
            options={
                "headers": {**headers, "Content-Type": "application/json"},
                "timeout": openai.Timeout(request.idle_timeout_s, connect=_CONNECT_TIMEOUT_S),
            },
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )

    def _status_error(self, error: openai.APIStatusError) -> JourneymanError:
        body: Mapping[str, Any] = error.body if isinstance(error.body, Mapping) else {}
        words = error_text(_words_of(error.body) or error.response.text, self._secrets)
        status = error.status_code
        code = body.get("code")
        details = body.get("details")
        if status == BudgetExhausted.status and code == BudgetExhausted.code:
            return BudgetExhausted(words, **(details if isinstance(details, dict) else {}))
        retryable = body.get("retryable")
        if not isinstance(retryable, bool):
            retryable = status in _RETRYABLE_STATUS or status >= 500
        # What the gateway says of its own accord are sentences; only the engine's own words need to be introduced.
        details = details if isinstance(details, dict) else {}
        own = bool(details) and "engine_status" not in details
        kind = details.get("refusal")
        if kind == RefusalKind.ACCOUNT:
            wait_s = retry_after_seconds(error.response.headers.get("retry-after"))
            return ModelUnavailable(
                words, code=REFUSAL_CODES[RefusalKind.ACCOUNT], retry_after_s=wait_s or ACCOUNT_RETRY_S, status=status
            )
        if retryable:
            return ModelUnavailable(
                words if own else f"The model's server answered with HTTP {status}: {words}",
                retry_after_s=retry_after_seconds(error.response.headers.get("retry-after")),
                status=status,
            )
        said = words if own else f"The model's server refused the request (HTTP {status}): {words}"
        facts = {"limit": details["limit"]} if isinstance(details.get("limit"), int) else {}
        return ModelRejected(said, code=REFUSAL_CODES.get(kind, ModelRejected.code), status=status, **facts)  # type: ignore[arg-type]  # any value may be asked for

    def _stream_error(self, error: openai.APIError) -> JourneymanError:
        """For an error object in the middle of a stream."""
        words = error_text(_words_of(error.body) or error.message, self._secrets)
        if isinstance(error.body, Mapping) and error.body.get("retryable") is False:
            return ModelRejected(f"The model's server gave up in the middle of its answer: {words}")
        return ModelUnavailable(
            f"The model's server gave up in the middle of its answer: {words}", code="model_stream_broken"
        )


def request_body(request: ModelRequest) -> bytes:
    """The body that is sent. The messages come last: whatever differs between roles and models stands before them."""
    head: dict[str, Any] = {"model": request.model, "stream": True, "stream_options": {"include_usage": True}}
    if request.max_tokens is not None:
        head["max_tokens"] = request.max_tokens
    if request.temperature is not None:
        head["temperature"] = request.temperature
    if request.tools:
        head["tools"] = request.tools
    messages = request.messages if isinstance(request.messages, bytes) else _json(request.messages)
    return b"".join((_json(head)[:-1], b',"messages":', messages, b"}"))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def retry_after_seconds(value: str | None) -> float | None:
    """Seconds to wait by a ``Retry-After`` header (RFC 9110 section 10.2.3: seconds or an HTTP date), never below 0.

    None for an absent header or one that cannot be understood.
    """
    if value is None:
        return None
    with suppress(ValueError):
        seconds = float(value)
        return max(0.0, seconds) if seconds < float("inf") else None
    with suppress(ValueError, TypeError):
        when = parsedate_to_datetime(value)
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return max(0.0, (when - clock.now()).total_seconds())
    return None


def _as_mapping(chunk: object) -> Mapping[str, Any]:
    if not isinstance(chunk, Mapping):
        raise TypeError("a chunk is no JSON object")
    return chunk


def _words_of(body: object) -> str:
    if isinstance(body, Mapping):
        message = body.get("message") or body.get("detail")
        return message if isinstance(message, str) else json.dumps(body, default=str)
    return body if isinstance(body, str) else ""
