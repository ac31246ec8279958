"""A small server in the place of a real part: ``python stand_in.py NAME PORT JOURNAL [crash|deaf|stubborn]``.

Serves ``GET /readyz``, starts a process of its own, and writes into the journal when it starts and when it is told to stop.
crash: ends at once with a complaint. deaf: never serves. stubborn: ignores SIGTERM.
"""

import http.server
import os
import signal
import subprocess
import sys
import threading

NAME, PORT, JOURNAL = sys.argv[1], int(sys.argv[2]), sys.argv[3]
MODE = sys.argv[4] if len(sys.argv) > 4 else ""


def note(text: str) -> None:
    with open(JOURNAL, "a") as journal:
        journal.write(f"{NAME} {text}\n")


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *arguments: object) -> None:
        return


def stop(*_: object) -> None:
    note("stopped")
    os._exit(0)


if MODE == "crash":
    sys.exit("the stand-in cannot go on: its flux capacitor is missing")
signal.signal(signal.SIGTERM, signal.SIG_IGN if MODE == "stubborn" else stop)
note("started")
child = subprocess.Popen(["sleep", "600"])
note(f"child {child.pid}")
if MODE == "deaf":
    threading.Event().wait()
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Answer).serve_forever()
