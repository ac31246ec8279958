"""The protocol between the platform and the agent: frames, their limits, JSON, and refused requests.

Frame::

    header size   4 bytes, big-endian
    payload size  4 bytes, big-endian
    header        JSON object, ASCII, at most MAX_HEADER bytes
    payload       bytes, at most MAX_PAYLOAD

A connection carries one request at a time. The first frame of a request has ``op`` and ``token`` in its header; an
operation may take more frames. Answers follow, up to one with ``end`` (done) or ``error`` (refused; ``message`` and
``details`` say why). Closing the connection ends the request. A frame over a limit, or whose header is no JSON
object, closes the connection.

Errors of any operation: ``unauthorized`` (wrong token), ``unknown_op``, ``internal`` (a fault of the agent). An
operation's docstring names its arguments (fields of the header, unless it says payload), answers, errors and limits.
Paths are text; bytes that are not UTF-8 are lone surrogates (``surrogateescape``).

Both sides import this module. Inside a sandbox it must not import anything slow.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from json import dumps as dumps  # noqa: PLC0414  exported
    from json import loads as loads  # noqa: PLC0414  exported
    from typing import Any, Final, Literal

    Wait = Literal["frame", "wake", "drain"] | float | None
    """``None``: go on next turn. ``"frame"``: the next frame of the request. ``"wake"``: until woken. A number: until
    that monotonic time. ``"drain"`` is set by the loop alone: until the client has read what is queued for it."""
    Steps = Generator[Wait, Any, None]
else:
    # The public json module takes a quarter of the time that a sandbox needs to start.
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner
    except ImportError:  # an interpreter without the accelerators
        from json import dumps, loads
    else:

        class _Options:
            strict, object_hook, object_pairs_hook = True, None, None
            parse_float, parse_int, parse_constant = float, int, float

        _scan = make_scanner(_Options)
        _encode = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, True)

        def loads(data: str | bytes | bytearray) -> Any:
            """A value from JSON text without space around it. Raises ``ValueError``."""
            try:
                return _scan(data if isinstance(data, str) else bytes(data).decode(), 0)[0]
            except (StopIteration, SystemError):  # the latter is 3.11's way to say that json.decoder is not loaded
                raise ValueError("not JSON") from None

        def dumps(value: Any) -> str:
            """Compact JSON, ASCII only."""
            return "".join(_encode(value, 0))


MAX_HEADER: Final = 256 * 1024
MAX_PAYLOAD: Final = 1024 * 1024 + 64 * 1024
CHUNK: Final = 256 * 1024
"""Bytes of content in one frame, and of one read."""
STREAM_FRAME: Final = 32 * 1024
"""Bytes of a command's output in one frame while the client follows it."""
MAX_STDIN: Final = 64 * 1024 * 1024
MAX_COMMAND: Final = 1024 * 1024
"""Bytes of a command for the shell."""
MAX_READ: Final = 16 * 1024 * 1024
ROOTS: Final = ("workspace", "artifacts")
"""Directories that a snapshot holds, relative to ``/``."""
SIZES: Final = struct.Struct(">II")


def pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """A whole frame. Raises ``ValueError`` when it is over a limit."""
    encoded = dumps(header).encode()
    if len(encoded) > MAX_HEADER:
        raise ValueError(f"the parameters of a request take {len(encoded)} bytes; at most {MAX_HEADER} are possible")
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a frame carries {len(payload)} bytes; at most {MAX_PAYLOAD} are possible")
    return SIZES.pack(len(encoded), len(payload)) + encoded + payload


class OpError(Exception):
    """A refused request; the code is part of the protocol."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
