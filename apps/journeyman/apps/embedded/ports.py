"""Free TCP ports on loopback.

Ports come from below the kernel's ephemeral range: in there, a client that keeps trying to reach a server which is being
restarted can be given that very port as its own source port, connects to itself, and so keeps the server from coming back.
"""

import random
import socket
from contextlib import suppress
from pathlib import Path

_LOWEST = 10240
_random = random.SystemRandom()


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def claim(port: int) -> socket.socket | None:
    """Keep a port for this process until the socket is closed, against every other claim on this machine.

    Between choosing a port and listening on it lie seconds, in which another stack that starts would find it free as well.
    None when somebody listens there or has claimed it. A claim is a name in the kernel, which ends with its process.
    """
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0journeyman-port-{port}")
    except OSError:
        held.close()
        return None
    if is_free(port):
        return held
    held.close()
    return None


def choose_port(avoid: set[int]) -> int:
    """A free port that is not among those to avoid."""
    for _ in range(200):
        port = _random.randrange(_LOWEST, _ephemeral_start())
        if port not in avoid and is_free(port):
            return port
    with socket.socket() as probe:  # a machine whose lower ports are all taken
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ephemeral_start() -> int:
    with suppress(OSError, ValueError, IndexError):
        start = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if start > _LOWEST + 1000:
            return start
    return 32768
