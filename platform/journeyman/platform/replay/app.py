"""The HTTP side of the replay engine. aiohttp serves it, because faults must be able to drop connections."""

import asyncio
import json
from typing import Any, Final

from aiohttp import web

from journeyman.platform.kit.errors import InvalidInput, JourneymanError
from journeyman.platform.replay.catalog import ReplayCatalog
from journeyman.platform.replay.player import (
    MODEL_NAME,
    Answer,
    ReplayPlayer,
    error_body,
)
from journeyman.platform.replay.script import (
    BreakStreamFault,
    DisconnectFault,
    MalformedFault,
    StatusFault,
    TimeoutFault,
)

_MAX_BODY: Final = 256 * 1024 * 1024
_player_key = web.AppKey("player", ReplayPlayer)


def create_replay_app(catalog: ReplayCatalog) -> web.Application:
    app = web.Application(client_max_size=_MAX_BODY)
    app[_player_key] = ReplayPlayer(catalog)
    app.router.add_post("/v1/chat/completions", _chat_completions)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/healthz", _health)
    app.router.add_get("/readyz", _health)
    return app


async def _health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _models(_request: web.Request) -> web.Response:
    model = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "journeyman"}
    return web.json_response({"object": "list", "data": [model]})


async def _chat_completions(request: web.Request) -> web.StreamResponse:
    try:
        raw = await request.read()
        body = _parse(raw)
        answer = request.app[_player_key].answer(body, raw)
    except JourneymanError as error:
        return web.json_response(error_body(error), status=error.status)
    fault = answer.fault
    await asyncio.sleep(answer.turn.delay_ms / 1000)
    if isinstance(fault, StatusFault):
        return _status_fault(fault)
    if isinstance(fault, TimeoutFault):
        await asyncio.sleep(fault.seconds)
        return _dropped(request)
    if isinstance(fault, DisconnectFault):
        return _dropped(request)
    if not body.get("stream"):
        if isinstance(fault, BreakStreamFault):
            return _dropped(request)
        return web.json_response(answer.completion())
    options = body.get("stream_options")
    include_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return await _stream(request, answer, include_usage=include_usage)


async def _stream(request: web.Request, answer: Answer, *, include_usage: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    fault = answer.fault
    pause = answer.turn.delta_ms / 1000
    for sent, chunk in enumerate(answer.chunks(include_usage=include_usage)):
        if isinstance(fault, BreakStreamFault) and sent == fault.after_chunks:
            if fault.how == "reset":
                return _dropped(request, response)
            await response.write_eof()
            return response
        if isinstance(fault, MalformedFault) and sent == 1:
            await response.write(b"data: {not json\n\n")
        await response.write(b"data: " + json.dumps(chunk, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n")
        if pause:
            await asyncio.sleep(pause)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _parse(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise InvalidInput(f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise InvalidInput("The body must be a JSON object.")
    return body


def _status_fault(fault: StatusFault) -> web.Response:
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    error = {"message": fault.message, "type": "scripted_fault", "param": None, "code": "scripted_fault"}
    return web.json_response({"error": error}, status=fault.status, headers=headers)


def _dropped(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Close the connection as it stands; what is returned goes nowhere."""
    if request.transport is not None:
        request.transport.close()
    return response if response is not None else web.Response()
