"""What a person finds who opens the API in a browser: ``/`` names its parts, ``/docs`` lists every address. No scripts."""

from collections.abc import Iterator
from html import escape
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

router = APIRouter(include_in_schema=False)

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Referrer-Policy": "no-referrer",
}
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "code{font-family:ui-monospace,monospace}dt{margin-top:.9rem}dd{margin:.1rem 0 0 1.5rem}h2{margin-top:2.2rem}"
    ".verb{display:inline-block;min-width:4.5rem;font-weight:600}"
)
_PARTS: Final = {
    "api": "/v1",
    "openapi": "/openapi.json",
    "reference": "/docs",
    "health": "/healthz",
    "metrics": "/metrics",
}


@router.get("/")
async def index(request: Request) -> Response:
    """For programs as JSON, for browsers as a page."""
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"name": "Journeyman", "version": version("journeyman"), **_PARTS})
    links = "".join(f'<li>{name}: <a href="{path}"><code>{path}</code></a></li>' for name, path in _PARTS.items())
    return _page(
        "Journeyman",
        f"<p>Teams of AI agents carry long jobs to a verified end. Version {escape(version('journeyman'))}.</p>"
        f"<ul>{links}</ul><p>Every address below <code>/v1</code> needs <code>Authorization: Bearer jm_…</code>.</p>",
    )


@router.get("/docs")
async def reference(request: Request) -> Response:
    """Every address, with what it does, from the OpenAPI document."""
    return _page("Journeyman API", "".join(_sections(request.app.openapi())))


def _sections(document: dict[str, Any]) -> Iterator[str]:
    yield (
        '<p>Requests, answers and errors in full: <a href="/openapi.json"><code>/openapi.json</code></a> '
        "(OpenAPI 3.1, for generators and viewers).</p>"
    )
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            parameters = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            asked = f"?{'&'.join(f'{name}=' for name in parameters)}" if parameters else ""
            by_tag.setdefault(tag, []).append(
                f'<dt><code><span class="verb">{verb.upper()}</span>{escape(path)}</code>'
                f"<code>{escape(asked)}</code></dt><dd>{escape(operation.get('description', ''))}</dd>"
            )
    for tag in sorted(by_tag):
        yield f"<h2>{escape(tag)}</h2><dl>{''.join(by_tag[tag])}</dl>"


def _page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{body}</body></html>",
        headers=_HEADERS,
    )
