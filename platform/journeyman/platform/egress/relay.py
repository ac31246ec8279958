"""Inside a sandbox: run a program whose HTTP(S) connections go through the egress proxy's socket.

    python3 -I -S -c SOURCE SOCKET PROGRAM ARG…

Listens on the sandbox's loopback, tells the program by ``http_proxy`` and ``https_proxy``, and hands each connection on
to the Unix socket byte by byte. Ends with the program, with its exit code. Standard library only: this file's text is
handed to the sandbox's interpreter. It decides nothing; the proxy does.
"""

import contextlib
import os
import socket
import sys
import threading

_PIECE = 64 * 1024


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy until one side ends; pass the end on."""
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def serve(listener: socket.socket, path: str) -> None:
    """Two threads a connection, both of which end with it."""
    while True:
        client, _ = listener.accept()
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(path)
        except OSError:
            client.close()
            upstream.close()
            continue
        for ends in ((client, upstream), (upstream, client)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


def main() -> None:
    path, *argv = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
    threading.Thread(target=serve, args=(listener, path), daemon=True).start()
    environment = {**os.environ, "http_proxy": proxy, "https_proxy": proxy}
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawnp(argv[0], argv, environment), 0)[1])
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        status = 127
    sys.stderr.flush()
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
