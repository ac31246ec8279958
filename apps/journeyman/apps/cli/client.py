"""The REST API as the command line uses it."""

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import httpx

from journeyman.apps.cli import sse
from journeyman.apps.cli.server import Server, demo_server
from journeyman.apps.cli.suggestions import command
from journeyman.apps.cli.text import visible
from journeyman.apps.exits import CommandError, Exit

Json = dict[str, Any]

_ATTEMPTS: Final = 4
_SILENCE_S: Final = 45.0
"""A stream that says nothing for so long, not even its ping every 15 s, is taken for dead."""
_PATIENCE_S: Final = 300.0
"""How long a watcher goes on trying to reach a server that went away."""


class Api:
    """One server. Every method raises :class:`CommandError` with a sentence for people."""

    def __init__(self, server: Server, *, locate: Callable[[], Server] | None = None) -> None:
        """``locate`` finds the server again: a local stack may come back on other ports."""
        self._locate = locate
        self._use(server)

    def _use(self, server: Server) -> None:
        self.server = server
        self._http = httpx.Client(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.api_key}", "User-Agent": "journeyman-cli"},
            timeout=httpx.Timeout(60, connect=10),
        )

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def request(self, method: str, path: str, *, repeatable: bool | None = None, **arguments: Any) -> httpx.Response:
        """One answer below 400. What may be repeated (by default reads) is, when the server is away or says it may be."""
        may_repeat = method in {"GET", "PUT", "DELETE"} if repeatable is None else repeatable
        attempt = 1
        while True:
            try:
                response = self._http.request(method, path, **arguments)
            except httpx.TransportError as error:
                if not may_repeat or attempt == _ATTEMPTS:
                    raise self._unreachable(error) from None
            else:
                if response.status_code < 400:
                    return response
                if response.status_code == 404 and path.startswith("/v1/tasks/") and self._look_among_demos():
                    continue
                if not (may_repeat and response.status_code in {429, 502, 503, 504} and attempt < _ATTEMPTS):
                    raise refusal(response)
            time.sleep(min(4.0, 0.25 * 2**attempt) * random.uniform(0.7, 1.3))  # noqa: S311  jitter
            attempt += 1

    def _look_among_demos(self) -> bool:
        """Ask as the demos' project from now on, which has tasks that the first one has not. False: done already, or none."""
        demos = demo_server(self.server)
        if demos is None:
            return False
        self._http.close()
        self._use(demos)
        return True

    def _unreachable(self, error: httpx.TransportError) -> CommandError:
        return CommandError(
            f"Cannot reach {self.server.url} ({_reason(error)}).\n"
            + (
                f"Is the stack running? `{command()} status` tells, `{command()} up` starts it; its tasks go on then."
                if self._locate is not None
                else f"The address comes from {self.server.source}; check it and the network."
            ),
            Exit.PLATFORM,
        )

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at an address; a parameter that is None is left out."""
        return self.request(
            "GET", path, params={key: value for key, value in query.items() if value is not None}
        ).json()

    def pages(self, path: str, *, limit: int | None = None, **query: Any) -> Iterator[Json]:
        """All items of a list, page by page; at most ``limit``."""
        cursor: str | None = None
        given = 0
        while True:
            page = self.get(path, cursor=cursor, limit=min(100, limit - given) if limit else 100, **query)
            for item in page["data"]:
                yield item
                given += 1
                if limit and given >= limit:
                    return
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def submit(self, body: Json, idempotency_key: str | None = None) -> Json:
        """The accepted task. Sent under an idempotency key, so that a repeated request makes no second task."""
        return self.command("/v1/tasks", body, idempotency_key)

    def upload(self, archive: BinaryIO, length: int) -> Json:
        """The upload that was made of an archive of ``length`` bytes. Not repeated: the archive is read once."""
        headers = {"Content-Type": "application/gzip", "Content-Length": str(length)}
        found: Json = self.request(
            "POST", "/v1/uploads", content=_chunks(archive), headers=headers, timeout=httpx.Timeout(600, connect=10)
        ).json()
        return found

    def task(self, task_id: str) -> Json:
        found: Json = self.get(f"/v1/tasks/{_segment(task_id)}")
        return found

    def cancel(self, task_id: str) -> Json:
        found: Json = self.request("POST", f"/v1/tasks/{_segment(task_id)}/cancel", repeatable=True).json()
        return found

    def pause(self, task_id: str) -> Json:
        found: Json = self.request("POST", f"/v1/tasks/{_segment(task_id)}/pause", repeatable=True).json()
        return found

    def resume(self, task_id: str) -> Json:
        found: Json = self.request("POST", f"/v1/tasks/{_segment(task_id)}/resume", repeatable=True).json()
        return found

    def tell(self, task_id: str, text: str, mode: str) -> Json:
        """Send the agents a message; under an idempotency key, so that it may be repeated."""
        return self.command(f"/v1/tasks/{_segment(task_id)}/messages", {"text": text, "mode": mode})

    def change_budget(self, task_id: str, limits: Json) -> Json:
        """Set the limits that are named; a task that waits for its budget goes on."""
        path = f"/v1/tasks/{_segment(task_id)}/budget"
        found: Json = self.request("PATCH", path, json=limits, repeatable=True).json()
        return found

    def decide(self, approval_id: str, body: Json) -> Json:
        """Approve or reject; sent under an idempotency key, so that it may be repeated."""
        return self.command(f"/v1/approvals/{self.segment(approval_id)}", body)

    def command(self, path: str, body: Json, idempotency_key: str | None = None) -> Json:
        """POST under an idempotency key, by default a random one, so that it may be repeated; returns the answer."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        found: Json = self.request("POST", path, json=body, headers=headers, repeatable=True).json()
        return found

    def edit_plan(self, task_id: str, plan: Json) -> Json:
        found: Json = self.request("PUT", f"/v1/tasks/{_segment(task_id)}/plan", json=plan).json()
        return found

    @staticmethod
    def segment(id_: str) -> str:
        """An id as one segment of a path. Raises :class:`CommandError` for what is none."""
        return _segment(id_)

    def of_task(self, task_id: str, what: str, **query: Any) -> Any:
        """``plan``, ``receipts``, ``usage``, ``diff``, ``artifacts``, ``checkpoints`` or ``events`` of a task."""
        return self.get(f"/v1/tasks/{_segment(task_id)}/{what}", **query)

    def events(self, task_id: str, after: int = 0) -> Iterator[Json]:
        """The events written so far, in order."""
        while True:
            page = self.of_task(task_id, "events", after=after, limit=100)
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["next_after"]

    def download(self, artifact_id: str, target: Path) -> int:
        """Write an artifact's bytes to a file that must not exist yet; returns how many."""
        count = 0
        try:
            with self._http.stream("GET", f"/v1/artifacts/{_segment(artifact_id)}/content") as response:
                if response.status_code >= 400:
                    response.read()
                    raise refusal(response)
                with target.open("xb") as file:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
                        count += len(chunk)
        except httpx.TransportError as error:
            target.unlink(missing_ok=True)
            raise self._unreachable(error) from None
        return count

    def follow(
        self,
        task_id: str,
        after: int = 0,
        *,
        deadline: float | None = None,
        on_gap: Callable[[str | None], None] | None = None,
    ) -> Iterator[Json | None]:
        """Events from ``after`` on, until the task's log ends; reconnects by itself, without loss or repetition.

        Yields None for a sign of life without news, and ends when ``deadline`` (monotonic) has passed. ``on_gap`` is told
        why the stream is away, and None when it is back.
        """
        away_since: float | None = None
        wait = 0.2
        while True:
            why = "the stream ended"
            try:
                for message in self._stream(task_id, after, deadline):
                    if away_since is not None and on_gap is not None:
                        on_gap(None)
                    away_since, wait = None, 0.2
                    if message is not None and message.event == "end":
                        return
                    event = None if message is None else _event_of(message)
                    if event is None:
                        yield None
                    elif event["seq"] > after:
                        after = event["seq"]
                        yield event
                    if _passed(deadline):
                        return
            except httpx.TransportError as error:
                why = _reason(error)
            except _Away as error:
                why = str(error)
            if _passed(deadline):
                return
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > _PATIENCE_S:
                raise CommandError(
                    f"Lost {self.server.url} for {int(_PATIENCE_S)} s ({why}). The task goes on without its watcher; "
                    f"look again later:\n  {command()} watch {task_id}",
                    Exit.PLATFORM,
                )
            if on_gap is not None:
                on_gap(why)
            time.sleep(wait)
            wait = min(wait * 2, 3.0)
            yield None
            self._find_again()

    def _stream(self, task_id: str, after: int, deadline: float | None) -> Iterator[sse.ServerSentEvent | None]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        left = _SILENCE_S if deadline is None else max(0.05, deadline - time.monotonic())
        timeout = httpx.Timeout(min(_SILENCE_S, left), connect=5)
        path = f"/v1/tasks/{_segment(task_id)}/events/stream"
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code in {429, 500, 502, 503, 504}:
                raise _Away(f"the server answers {response.status_code}")
            if response.status_code >= 400:
                response.read()
                raise refusal(response)
            yield None
            yield from sse.parse(response.iter_lines())

    def _find_again(self) -> None:
        if self._locate is None:
            return
        try:
            server = self._locate()
        except CommandError:
            return
        if server.url != self.server.url:
            self._http.close()
            self._use(replace(server, api_key=self.server.api_key))


class _Away(Exception):
    """The stream cannot be had just now."""


def _event_of(message: sse.ServerSentEvent) -> Json | None:
    """The event in a message; None for token deltas and whatever else is not part of the log."""
    if message.id is None or message.event == "delta":
        return None
    try:
        event = json.loads(message.data)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("seq"), int) else None


def refusal(response: httpx.Response) -> CommandError:
    """A problem document as sentences: what happened, which fields, and the request id to ask about."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    what = problem.get("detail") or problem.get("title") or f"The server answered {response.status_code}."
    lines = [visible(str(what))]
    errors = problem.get("errors")
    for error in errors if isinstance(errors, list) else []:
        entry = f"{error.get('field')}: {error.get('message')}" if isinstance(error, dict) else str(error)
        if entry not in lines[0]:
            lines.append(f"  {visible(entry)}")
    if response.status_code == 401:
        lines.append("Check the key: --api-key, JOURNEYMAN_API_KEY, or admin.key in the data directory.")
    if problem.get("retryable"):
        lines.append("This may pass: try again in a moment.")
    request_id = problem.get("request_id") or response.headers.get("x-request-id")
    if request_id:
        lines.append(f"(request {visible(str(request_id))})")
    return CommandError(
        "\n".join(lines), Exit.USAGE if response.status_code < 500 and response.status_code != 429 else Exit.PLATFORM
    )


def _passed(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _segment(id_: str) -> str:
    """An id as one segment of a path, so that no id can lead elsewhere."""
    if not id_ or not id_.replace("_", "").replace("-", "").isalnum() or not id_.isascii():
        raise CommandError(f"{visible(id_)!r} is not an id; ids look like task_0199… (see `journeyman list`).")
    return id_


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(1 << 20):
        yield chunk
