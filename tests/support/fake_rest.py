"""A server that speaks the REST contract from memory, over a real socket, with faults to order."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEY = "jm_test_key_0123456789"
TASK = "task_0123456789abcdef0123456789abcdef"
PROBLEM = "application/problem+json"


def event(seq: int, kind: str, data: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"evt_{seq:032x}",
        "seq": seq,
        "task_id": TASK,
        "type": kind,
        "time": f"2026-01-02T03:04:{seq % 60:02d}+00:00",
        "thread_id": None,
        "subtask_id": None,
        "data": data or {},
        **fields,
    }


def course(final: str = "succeeded", *, verified: bool = True) -> list[dict[str, Any]]:
    """The log of a small task."""
    coder = {"thread_id": "thr_c", "subtask_id": "s1"}
    ending = "completed" if final == "succeeded" else final
    failure = (
        {} if final in {"succeeded", "cancelled"} else {"failure": {"code": "x", "message": "the tests still fail"}}
    )
    return [
        event(1, "task.created"),
        event(2, "task.state_changed", {"from": "queued", "to": "planning"}),
        event(
            3,
            "plan.proposed",
            {
                "revision": 1,
                "subtasks": [{"id": "s1", "title": "Fix the sum", "depends_on": []}],
                "acceptance": ["pytest -q"],
            },
            thread_id="thr_p",
        ),
        event(4, "subtask.started", {"subtask_id": "s1", "plan_revision": 1}, **coder),
        event(5, "model.started", {"role": "coder", "step": 1}, **coder),
        event(
            6, "model.completed", {"role": "coder", "usage": {"prompt_tokens": 90, "completion_tokens": 10}}, **coder
        ),
        event(
            7,
            "agent.tool_call",
            {"role": "coder", "call_id": "c:0", "tool": "shell", "arguments": '{"command": "pytest -q"}'},
            **coder,
        ),
        event(
            8,
            "agent.tool_result",
            {
                "role": "coder",
                "call_id": "c:0",
                "tool": "shell",
                "ok": True,
                "exit_code": 0,
                "duration_s": 0.25,
                "text": "\x1b[32m3 passed\x1b[0m\x07 \ud800",
            },
            **coder,
        ),
        event(9, "checkpoint.created", {"checkpoint_id": "ckpt_1"}, **coder),
        event(10, "subtask.completed", {"subtask_id": "s1", "rounds": 1}, **coder),
        event(11, "acceptance.passed", {"command": "pytest -q", "exit_code": 0, "duration_s": 0.5}),
        event(12, "task.state_changed", {"from": "verifying", "to": final}),
        event(13, f"task.{ending}", {"state": final, "verified": verified, **failure}),
    ]


def sse(entry: dict[str, Any]) -> bytes:
    return f"id: {entry['seq']}\nevent: {entry['type']}\ndata: {json.dumps(entry)}\n\n".encode()


@dataclass
class Server:
    """State of the fake; tests change it at will."""

    events: list[dict[str, Any]] = field(default_factory=course)
    task: dict[str, Any] = field(default_factory=dict)
    engine: str = "replay"
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refusals: dict[tuple[str, str], list[tuple[int, dict[str, Any] | str]]] = field(default_factory=dict)
    """Answers that (method, path) gives first, one a request."""
    break_after: list[int] = field(default_factory=list)
    """Stream connections that break after so many events, one an entry; later ones go on to the end."""
    hold_open: bool = False
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    keys: set[str] = field(default_factory=lambda: {KEY})
    owner: str | None = None
    """The only key that knows the task, if not all do."""

    def __post_init__(self) -> None:
        self.task = {
            "id": TASK,
            "title": "Repair the sum",
            "instruction": "Make the tests pass.",
            "state": "succeeded",
            "paused_reason": None,
            "verified": True,
            "failure": None,
            "summary": None,
            "created_at": "2026-01-02T03:04:00+00:00",
            "finished_at": "2026-01-02T03:04:13+00:00",
        }

    def end_as(self, state: str, *, verified: bool = False) -> None:
        self.events = course(state, verified=verified)
        self.task |= {"state": state, "verified": verified}

    def bodies(self, method: str, path: str) -> list[Any]:
        return [json.loads(body) for how, where, body in self.requests if (how, where) == (method, path)]


def _routes(server: Server, query: dict[str, str]) -> dict[tuple[str, str], Callable[[], Any]]:
    base = f"/v1/tasks/{TASK}"
    after = int(query.get("after", 0))
    return {
        ("GET", "/v1/me"): lambda: {"engine": server.engine, "project": {"id": "proj_1"}},
        ("POST", "/v1/tasks"): lambda: {**server.task, "state": "queued"},
        ("POST", "/v1/projects"): lambda: _new_project(server),
        ("GET", "/v1/tasks"): lambda: {"data": [server.task], "next_cursor": None},
        ("GET", base): lambda: server.task,
        ("POST", f"{base}/messages"): lambda: {"id": "pmsg_1", "number": 1, "state": "received"},
        ("POST", f"{base}/pause"): lambda: server.task,
        ("POST", f"{base}/resume"): lambda: server.task,
        ("POST", f"{base}/fork"): lambda: server.task,
        ("PATCH", f"{base}/budget"): lambda: _with_budget(server),
        ("POST", f"{base}/cancel"): lambda: {**server.task, "state": "cancelled"},
        ("GET", f"{base}/usage"): lambda: {"tokens": 1234, "cost_usd": "0.0420"},
        ("GET", f"{base}/receipts"): lambda: {
            "data": [{"command": "pytest -q", "passed": True, "exit_code": 0, "duration_s": 0.5}]
        },
        ("GET", f"{base}/artifacts"): lambda: {"data": server.artifacts},
        ("GET", f"{base}/diff"): lambda: {"patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\x1b[31m\n"},
        ("GET", f"{base}/events"): lambda: _event_page(server.events, after, int(query.get("limit", 20))),
        ("POST", "/v1/uploads"): lambda: {"id": "upl_1", "digest": "sha256:0", "files": 2, "bytes": 10},
    }


def _new_project(server: Server) -> dict[str, Any]:
    """A project whose key alone knows the task from then on."""
    server.owner = f"jm_test_project_{len(server.keys)}"
    server.keys.add(server.owner)
    return {"id": "proj_2", "api_key": {"key": server.owner}}


def _with_budget(server: Server) -> dict[str, Any]:
    """The task under the limits that were sent last."""
    server.task["budget"] = {**server.task.get("budget", {}), **json.loads(server.requests[-1][2])}
    return server.task


def _event_page(events: list[dict[str, Any]], after: int, limit: int) -> dict[str, Any]:
    left = [entry for entry in events if entry["seq"] > after]
    shown = left[:limit]
    return {"data": shown, "next_after": shown[-1]["seq"] if shown else after, "has_more": len(left) > limit}


@contextmanager
def serving() -> Iterator[Server]:
    """A fake server on a free port, until the block ends."""
    state = Server()
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = self._chunked()
            state.requests.append((self.command, parts.path, body))
            state.headers.append(dict(self.headers.items()))
            key = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if key not in state.keys:
                self._answer(401, {"detail": "No such key.", "code": "unauthorized", "request_id": "req_1"})
                return
            if state.owner not in {None, key} and parts.path.startswith("/v1/tasks/"):
                self._answer(404, {"detail": "This project has no such task.", "code": "task_not_found"})
                return
            waiting = state.refusals.get((self.command, parts.path))
            if waiting:
                self._answer(*waiting.pop(0))
            elif parts.path.endswith("/events/stream"):
                self._stream(int(self.headers.get("Last-Event-ID", 0)))
            elif parts.path.startswith("/v1/artifacts/"):
                self._raw(200, state.contents[parts.path.split("/")[3]], "application/octet-stream")
            elif (found := _routes(state, query).get((self.command, parts.path))) is not None:
                self._answer(201 if self.command == "POST" else 200, found())
            else:
                self._answer(
                    404, {"detail": f"There is nothing at {parts.path}.", "code": "not_found", "request_id": "req_2"}
                )

        do_GET = do_POST = do_PATCH = _handle

        def _chunked(self) -> bytes:
            body = b""
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _answer(self, status: int, document: dict[str, Any] | str) -> None:
            if isinstance(document, str):
                self._raw(status, document.encode(), "text/html")
            else:
                self._raw(status, json.dumps(document).encode(), PROBLEM if status >= 400 else "application/json")

        def _raw(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, after: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self.wfile.write(b": hello\n\n")
            allowed = state.break_after.pop(0) if state.break_after else None
            for count, entry in enumerate(entry for entry in list(state.events) if entry["seq"] > after):
                if count == allowed:
                    # Half an event, then nothing: the client must not take it for one.
                    self.wfile.write(sse(entry)[:20])
                    return
                self.wfile.write(b"event: delta\ndata: {}\n\n" + sse(entry))
            self.wfile.flush()
            while state.hold_open and not stopping.is_set():
                try:
                    self.wfile.write(b": ping\n\n")
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(0.02)
            self.wfile.write(b"event: end\ndata: {}\n\n")

        def log_message(self, *_: Any) -> None: ...

    class Http(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that leave in the middle of an answer are part of the tests."""

    http = Http(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield state
    finally:
        stopping.set()
        http.shutdown()
        http.server_close()
        thread.join()
