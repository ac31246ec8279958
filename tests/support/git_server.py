"""A real git server: smart HTTP by ``git http-backend`` on loopback, and repositories to serve."""

import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def git(folder: Path, *arguments: str, **env: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )
    return done.stdout.strip()


class GitServer:
    """Serves the repositories below ``root``. ``redirects`` maps the beginning of a path to where it moved."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.redirects: dict[str, str] = {}
        self.requests: list[str] = []
        self.hosts: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name of the base class
                pass

            def do_GET(self) -> None:
                outer._answer(self, b"")

            def do_POST(self) -> None:
                outer._answer(self, _body(self))

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)

    def url(self, name: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/{name}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: Any, body: bytes) -> None:
        self.requests.append(f"{handler.command} {handler.path}")
        self.hosts.append(handler.headers.get("Host", ""))
        for start, target in self.redirects.items():
            if handler.path.startswith(start):
                handler.send_response(301)
                handler.send_header("Location", target + handler.path.removeprefix(start))
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
        path, _, query = handler.path.partition("?")
        variables = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant",
            "GIT_CONFIG_VALUE_1": "true",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": handler.command,
            "CONTENT_TYPE": handler.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": handler.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=variables, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n") if ": " in line)
        handler.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


def _body(handler: Any) -> bytes:
    if handler.headers.get("Transfer-Encoding") != "chunked":
        return bytes(handler.rfile.read(int(handler.headers.get("Content-Length", "0"))))
    body = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


@contextmanager
def git_server(root: Path) -> Iterator[GitServer]:
    server = GitServer(root)
    server.start()
    try:
        yield server
    finally:
        server.stop()
