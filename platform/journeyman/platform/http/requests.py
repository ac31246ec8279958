"""Around every request: its id, the bound on its body, and an answer whatever happens inside. Pure ASGI."""

import re
from collections.abc import Collection
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from journeyman.platform.http.problems import of_exception, problem_response
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.logging import bind, get_logger

MAX_BODY: Final = 2 * 1024 * 1024
"""Bytes of a request's body, except where a route streams it."""

MAX_VALUES: Final = 5000
"""Values in a JSON body, containers among them. Each that is wrong becomes an error with a path: 150,000 unknown fields held
the process for seconds."""
MAX_DEPTH: Final = 64

_GIVEN_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_log = get_logger(__name__)


class RequestContext:
    """Gives the request an id (the caller's ``X-Request-Id`` if it is fit), echoes it, and answers what raised."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if _GIVEN_ID.fullmatch(given) else new_id("request")
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {
                    **message,
                    "headers": [
                        *message.get("headers", ()),
                        (b"x-request-id", request_id.encode()),
                        (b"x-content-type-options", b"nosniff"),
                    ],
                }
            await send(message)

        with bind(request_id=request_id):
            try:
                await self.app(scope, receive, send_with_id)
            except ClientDisconnect:
                _log.debug("api.client_gone")
            except Exception as error:
                if started:
                    # The status is out; ending the connection is the only way left to say that this is not all.
                    _log.error("api.stream_broken", exc_info=error)
                    raise
                await of_exception(scope, error)(scope, receive, send_with_id)


class BodyLimit:
    """Refuses bodies above a limit while they are read; ``larger`` names the paths that have a limit of their own."""

    def __init__(self, app: ASGIApp, *, limit: int = MAX_BODY, larger: dict[str, int] | None = None) -> None:
        self.app = app
        self.limit = limit
        self.larger = larger or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.larger.get(scope["path"].rstrip("/"), self.limit)
        refusal = f"The body is larger than {limit} bytes, which is the most this address takes."
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if declared.isdigit() and int(declared[:20]) > limit:
            response = problem_response(scope, status=413, code="payload_too_large", detail=refusal)
            await response(scope, receive, send)
            return
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > limit:
                    raise HTTPException(413, refusal)
            return message

        await self.app(scope, bounded, send)


class JsonLimit:
    """Refuses JSON bodies of too many values, or nested too deep, before anything looks at what is in them.

    Paths in ``streamed`` are not looked at: their bodies are no JSON.
    """

    def __init__(self, app: ASGIApp, *, streamed: Collection[str] = ()) -> None:
        self.app = app
        self.streamed = streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY or scope["path"].rstrip("/") in self.streamed:
            await self.app(scope, receive, send)
            return
        parts: list[bytes] = []
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    break
        except HTTPException as error:
            response = problem_response(scope, status=413, code="payload_too_large", detail=error.detail)
            await response(scope, receive, send)
            return
        body = b"".join(parts)
        refusal = _too_complex(body)
        if refusal is not None:
            response = problem_response(scope, status=422, code="too_complex", detail=refusal)
            await response(scope, receive, send)
            return
        whole: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def again() -> Message:
            nonlocal whole
            if whole is None:
                return await receive()
            message, whole = whole, None
            return message

        await self.app(scope, again, send)


def _too_complex(body: bytes) -> str | None:
    """What is wrong with the shape of a JSON body. Long texts with many commas cost a look at their quotation marks."""
    containers = body.count(b"[") + body.count(b"{")
    if containers <= MAX_DEPTH and body.count(b",") + containers <= MAX_VALUES:
        return None
    # Without escapes, every other quotation mark ends a text.
    bare = b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    values = bare.count(b",") + bare.count(b"[") + bare.count(b"{")
    if values > MAX_VALUES:
        return f"The body has more than {MAX_VALUES} values; nothing this API takes needs as many."
    depth = deepest = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return f"The body is nested deeper than {MAX_DEPTH} levels." if deepest > MAX_DEPTH else None
