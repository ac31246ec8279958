"""Which engine answers for which model name, and how a request body must change on its way there."""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from journeyman.platform.kit.errors import InvalidInput, NotFound
from journeyman.platform.kit.settings import Settings

DEFAULT_MAX_TOKENS: Final = 8192
"""Reserved for the answer when the caller sets no limit."""
MAX_TOKENS: Final = 10_000_000
"""The longest answer that can be asked for: beyond every model there is, and its reservation is still a sane number."""
MAX_MODEL_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Upstream:
    """An OpenAI-compatible API: ``base_url`` ends in its version, for example ``/v1``."""

    base_url: str
    api_key: str | None = None

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> "Upstream":
        """A URL without a path means the usual ``/v1``."""
        url = url.rstrip("/")
        return cls(url if urlsplit(url).path else f"{url}/v1", api_key)

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers


class Routing:
    """``standard`` and ``fast`` are the operator's choice; every other name goes to the same engine as it is."""

    def __init__(self, chat: Upstream, names: dict[str, str], embeddings: Upstream | None = None) -> None:
        self.chat = chat
        self.names = names
        self._embeddings = embeddings

    @classmethod
    def from_settings(cls, settings: Settings) -> "Routing":
        key = settings.model_api_key.get_secret_value() if settings.model_api_key is not None else None
        chat = (
            Upstream.at(settings.replay_url)
            if settings.model_base_url is None
            else Upstream.at(settings.model_base_url, key)
        )
        embeddings = Upstream.at(settings.embedding_base_url) if settings.embedding_base_url is not None else None
        return cls(chat, {"standard": settings.model_standard, "fast": settings.model_fast}, embeddings)

    @property
    def embeddings(self) -> Upstream:
        if self._embeddings is None:
            raise NotFound(
                "No embedding API is configured; set JOURNEYMAN_EMBEDDING_BASE_URL.", code="embeddings_not_configured"
            )
        return self._embeddings

    def engine_name(self, model: str) -> str:
        return self.names.get(model, model)

    def secrets(self) -> tuple[str, ...]:
        upstreams = [self.chat] if self._embeddings is None else [self.chat, self._embeddings]
        return tuple(upstream.api_key for upstream in upstreams if upstream.api_key)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """``body`` is what the engine gets: the caller's bytes, but for the model's name and the wish for usage."""

    model: str
    body: bytes
    stream: bool
    hide_usage: bool
    """The caller has not asked for the usage that the gateway needs."""
    prompt_tokens: int
    """Estimate: a quarter of the bytes."""
    max_completion_tokens: int


_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_chat(data: bytes, routing: Routing) -> ParsedRequest:
    """Looks at the top level only: the messages, which may be megabytes, are passed on unread."""
    fields = _fields(data)
    _require_list(fields, "messages")
    stream = _value(fields, "stream", bool | None) or False
    limit = _value(fields, "max_completion_tokens", int | None)
    if limit is None:
        limit = _value(fields, "max_tokens", int | None)
    choices = _value(fields, "n", int | None)
    if (limit is not None and not 1 <= limit <= MAX_TOKENS) or (choices is not None and not 1 <= choices <= 128):
        raise InvalidInput(
            f"'max_tokens' and 'max_completion_tokens' must be from 1 to {MAX_TOKENS}, and 'n' from 1 to 128."
        )
    model, changed = _route(fields, routing)
    hide_usage = False
    if stream:
        options = _value(fields, "stream_options", dict[str, Any] | None) or {}
        if options.get("include_usage") is not True:
            hide_usage = True
            fields["stream_options"] = msgspec.Raw(msgspec.json.encode({**options, "include_usage": True}))
            changed = True
    return ParsedRequest(
        model=model,
        body=msgspec.json.encode(fields) if changed else data,
        stream=stream,
        hide_usage=hide_usage,
        prompt_tokens=len(data) // 4 + 1,
        max_completion_tokens=(limit or DEFAULT_MAX_TOKENS) * (choices or 1),
    )


def parse_embeddings(data: bytes, routing: Routing) -> ParsedRequest:
    fields = _fields(data)
    if "input" not in fields:
        raise InvalidInput("'input' is missing.")
    model, changed = _route(fields, routing)
    return ParsedRequest(
        model=model,
        body=msgspec.json.encode(fields) if changed else data,
        stream=False,
        hide_usage=False,
        prompt_tokens=len(data) // 4 + 1,
        max_completion_tokens=0,
    )


def _fields(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"The body is not a JSON object: {error}.") from error


def _value(fields: dict[str, msgspec.Raw], name: str, kind: Any) -> Any:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"'{name}' is not valid: {error}.") from error


def _require_list(fields: dict[str, msgspec.Raw], name: str) -> None:
    raw = fields.get(name)
    if raw is None or not bytes(raw).lstrip()[:1] == b"[":
        raise InvalidInput(f"'{name}' is missing or not a list.")


def _route(fields: dict[str, msgspec.Raw], routing: Routing) -> tuple[str, bool]:
    asked = _value(fields, "model", str)
    if not asked:
        raise InvalidInput("'model' is missing; for example 'standard' or 'fast'.")
    if len(asked) > MAX_MODEL_NAME or not asked.isprintable():
        # Nor could the ledger hold it: it is written down with every call.
        raise InvalidInput(
            f"'model' is not the name of a model: at most {MAX_MODEL_NAME} characters, and none that cannot be printed."
        )
    model = routing.engine_name(asked)
    if model == asked:
        return model, False
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return model, True
