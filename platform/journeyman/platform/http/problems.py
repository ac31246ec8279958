"""Errors as RFC 9457 problem documents: one shape for everything that can go wrong."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.types import Scope

from journeyman.platform.kit.errors import JourneymanError
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.outages import database_unavailable, gave_way

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:journeyman:problem:"

_log = get_logger(__name__)


class FieldError(BaseModel):
    """What is wrong with one field; ``field`` is a path such as ``workspace.url`` or ``acceptance[2]``."""

    field: str
    message: str


class Problem(BaseModel):
    """Every error the API answers with. ``code`` is stable and meant for programs."""

    model_config = ConfigDict(title="Problem")

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    request_id: str
    errors: list[FieldError] | None = None
    """The fields at fault, when the request was refused for what is in them."""
    details: dict[str, Any] | None = None
    """Facts a client may act on."""


RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {
        "description": "The request was refused.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    },
    "5XX": {
        "description": "The platform failed.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    },
}
"""For every router: which documents its errors are."""


def request_id_of(scope: Scope) -> str:
    return str(scope.get("state", {}).get("request_id", ""))


def problem_response(
    scope: Scope,
    *,
    status: int,
    code: str,
    detail: str,
    retryable: bool = False,
    errors: Sequence[FieldError] = (),
    details: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    problem = Problem(
        type=TYPE_PREFIX + code,
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        retryable=retryable,
        request_id=request_id_of(scope),
        errors=list(errors) or None,
        details=details or None,
    )
    return JSONResponse(
        problem.model_dump(mode="json", exclude_none=True), status_code=status, media_type=MEDIA_TYPE, headers=headers
    )


def of_exception(scope: Scope, error: Exception) -> JSONResponse:
    """The document for an exception that nobody expected. Tells nothing of the inside; the log has it all."""
    if isinstance(error, JourneymanError):
        return _of_own_error(scope, error)
    if gave_way(error):
        _log.warning("api.gave_way", error=str(error)[:500])
        return problem_response(
            scope,
            status=503,
            code="gave_way",
            detail="The request met another one at the same rows and gave way. Nothing was changed; repeat the request.",
            retryable=True,
            headers={"Retry-After": "1"},
        )
    if database_unavailable(error):
        _log.warning("api.database_unavailable", error=str(error)[:500])
        return problem_response(
            scope,
            status=503,
            code="database_unavailable",
            detail="The platform's database does not answer at the moment. Nothing was changed; repeat the request.",
            retryable=True,
            headers={"Retry-After": "1"},
        )
    _log.error("api.unexpected_error", exc_info=error)
    return problem_response(
        scope,
        status=500,
        code="internal_error",
        detail="The platform failed in a way it did not expect. The log has the details under this request id.",
    )


def install(app: FastAPI) -> None:
    app.add_exception_handler(JourneymanError, _own_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)


def _own_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, JourneymanError)
    return _of_own_error(request.scope, error)


def _of_own_error(scope: Scope, error: JourneymanError) -> JSONResponse:
    if error.status >= 500:
        _log.warning("api.failed", code=error.code, error=error.message)
    details = dict(error.details)
    errors = [FieldError(**entry) for entry in details.pop("errors", [])]
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="journeyman"'
    if error.retryable and error.status in {429, 503}:
        headers["Retry-After"] = str(details.get("retry_after_s", 1))
    return problem_response(
        scope,
        status=error.status,
        code=error.code,
        detail=error.message,
        retryable=error.retryable,
        errors=errors,
        details=details,
        headers=headers,
    )


_CODES: Final = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "payload_too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
}


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == 404 and detail == "Not Found":
        detail = f"There is nothing at {request.url.path}. GET /openapi.json lists what there is."
    elif error.status_code == 405:
        detail = f"{request.method} is not possible at {request.url.path}."
    return problem_response(
        request.scope,
        status=error.status_code,
        code=_CODES.get(error.status_code, "http_error"),
        detail=detail,
        headers=dict(error.headers or {}),
    )


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(entry["type"] == "json_invalid" for entry in found):
        entry = next(entry for entry in found if entry["type"] == "json_invalid")
        where = f" at byte {entry['loc'][1]}" if len(entry["loc"]) > 1 else ""
        return problem_response(
            request.scope,
            status=400,
            code="malformed_json",
            detail=f"The body is not valid JSON{where}: {entry.get('ctx', {}).get('error', entry['msg'])}.",
        )
    errors = [FieldError(field=_field(entry, error.body), message=_message(entry)) for entry in found[:50]]
    listed = "; ".join(f"{entry.field}: {entry.message}" for entry in errors[:3])
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    return problem_response(
        request.scope,
        status=422,
        code="invalid_input",
        detail=f"The request was refused, nothing was stored. {listed}{more}",
        errors=errors,
    )


_NO_FIELDS: Final = frozenset({"[key]", "[word]", "[object]"})
"""Steps of a path that name no field: a key of an object, and the members of unions of a word and an object."""


def _field(entry: dict[str, Any], body: Any) -> str:
    """The path as the client knows it. Pydantic also names the chosen member of a union, which is no field."""
    where, *steps = entry["loc"]
    if where != "body":
        return "".join(f"[{step}]" if isinstance(step, int) else str(step) for step in steps) or str(where)
    path = ""
    current = body
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        if isinstance(step, int):
            path += f"[{step}]"
            current = current[step] if isinstance(current, list) and step < len(current) else None
            continue
        if step in _NO_FIELDS:
            continue
        if not last and isinstance(current, dict) and step not in current:
            continue
        path += f".{_shown(step)}" if path else _shown(step)
        current = current.get(step) if isinstance(current, dict) else None
    return path or "body"


def _shown(name: str) -> str:
    """A field name from the client, made fit to be shown."""
    text = name.encode("utf-8", "replace").decode()
    return text if len(text) <= 100 else text[:100] + "…"


def _message(entry: dict[str, Any]) -> str:
    if entry["type"] == "extra_forbidden":
        return "There is no such field."
    if entry["type"] == "missing":
        return "This field is required."
    message = str(entry["msg"]).removeprefix("Value error, ")
    return message if message.endswith((".", "!", "?")) else message + "."
