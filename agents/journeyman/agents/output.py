r"""Command output made fit for a model: decoded safely, and cut in the middle when long.

The bytes themselves are stored elsewhere and stay as they are; what is made here is only what a model reads. Cutting
keeps the beginning (what was run, the first error) and a larger end (the summary, the last error), and says exactly
which byte range is missing, so that ``read_output`` can fetch it.
"""

import re
from dataclasses import dataclass
from typing import Final

DEFAULT_LIMIT: Final = 16 * 1024
"""Bytes of one tool result that a model sees: about 4,000 tokens, so that a hundred results fit a usual context."""

_HEAD_SHARE: Final = 0.4

_ANSI: Final = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)"  # OSC: titles, links; bounded, so that an open one swallows nothing
    r"|[PX^_][^\x1b\n]{0,2000}\x1b\\"  # DCS, SOS, PM, APC
    r"|[ -/]*[0-OQ-WYZ\\`-~]"  # two-character sequences
    r")"
)

# Shown instead of acted on: control characters, and the marks that reorder text so that it reads as what it is not.
_VISIBLE: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"},
    **{code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What a model reads of an output. ``start`` and ``end`` are the byte range left out; both 0 when nothing is."""

    text: str
    total_bytes: int
    start: int = 0
    end: int = 0

    @property
    def truncated(self) -> bool:
        return self.end > self.start


def readable(data: bytes) -> str:
    r"""The bytes as text that says what they were and does nothing to whoever displays it.

    Invalid UTF-8 becomes ``\xNN``, as do control characters except tab and newline. Colour and cursor sequences are
    dropped. Of a line that was overwritten with carriage returns, as progress bars do, the last state is kept.
    """
    text = _ANSI.sub("", data.decode("utf-8", "backslashreplace")).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return text.translate(_VISIBLE)


def cut_output(data: bytes, output_id: str, limit: int = DEFAULT_LIMIT) -> ModelOutput:
    """The output for the model: whole when it fits ``limit`` bytes, else head, marker and tail.

    The marker comes on top of the limit; it names the omitted range and the ``output_id`` to read it with.
    """
    if len(data) <= limit and len(whole := readable(data)) <= limit and len(whole.encode()) <= limit:
        return ModelOutput(whole, len(data))
    head_limit = int(limit * _HEAD_SHARE)
    head_end, head = _fit_head(data, head_limit)
    tail_start, tail = _fit_tail(data, limit - head_limit, head_end)
    lines = data.count(b"\n", head_end, tail_start)
    marker = (
        f"[… {tail_start - head_end:,} of {len(data):,} bytes left out here ({lines:,} line breaks). "
        f'Read them with read_output: output_id "{output_id}", start {head_end}, end {tail_start}, '
        f"at most {limit:,} bytes at a time …]"
    )
    text = "".join((head, "" if head.endswith("\n") or not head else "\n", marker, "\n", tail))
    return ModelOutput(text, len(data), head_end, tail_start)


def output_range(data: bytes, start: int, total: int, limit: int = DEFAULT_LIMIT) -> str:
    """The answer to ``read_output``: ``data`` are the bytes from ``start`` of an output of ``total`` bytes.

    At most ``limit`` bytes are shown; the first line says which, and where to go on.
    """
    if start >= total:
        return f"[The output has {total:,} bytes; there is nothing at {start:,}.]"
    end, text = _fit_head(data, limit)
    end = max(end, min(1, len(data)))
    rest = f"; more from {start + end}" if start + end < total else ", the end"
    return f"[bytes {start} to {start + end} of {total}{rest}]\n{text}"


def cut_text(text: str, limit: int = DEFAULT_LIMIT) -> str:
    """A text that is stored nowhere else under an id, cut in the middle to about ``limit`` bytes of UTF-8."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    head_end = _head_end(data, int(limit * _HEAD_SHARE))
    tail_start = _tail_start(data, max(head_end, len(data) - (limit - head_end)))
    lines = data.count(b"\n", head_end, tail_start)
    head, tail = data[:head_end].decode(), data[tail_start:].decode()
    gap = "" if head.endswith("\n") or not head else "\n"
    return f"{head}{gap}[… {tail_start - head_end:,} bytes left out here ({lines:,} line breaks) …]\n{tail}"


def _last_state(line: str) -> str:
    """What a terminal would show in the end, near enough: the last part that is not empty."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def _fit_head(data: bytes, limit: int) -> tuple[int, str]:
    """How many bytes from the start, and their text, so that the text fits too: escapes make it up to 6 times longer."""
    size = min(limit, len(data))
    while True:
        end = _head_end(data, size)
        text = readable(data[:end])
        length = len(text.encode())
        if length <= limit or size <= 1:
            return end, text
        size = max(1, min(size - 1, size * limit // length))


def _fit_tail(data: bytes, limit: int, floor: int) -> tuple[int, str]:
    size = min(limit, len(data) - floor)
    while True:
        start = _tail_start(data, len(data) - size)
        text = readable(data[start:])
        length = len(text.encode())
        if length <= limit or size <= 1:
            return start, text
        size = max(1, min(size - 1, size * limit // length))


def _head_end(data: bytes, size: int) -> int:
    """A good place to end near ``size``: after a line if one ends in the last quarter, never inside a character."""
    if size >= len(data):
        return len(data)
    newline = data.rfind(b"\n", size - size // 4, size)
    if newline >= 0:
        return newline + 1
    end = size
    while end > max(0, size - 3) and data[end] & 0xC0 == 0x80:
        end -= 1
    return end if data[end] & 0xC0 != 0x80 else size


def _tail_start(data: bytes, start: int) -> int:
    if start <= 0 or start >= len(data):
        return max(0, min(start, len(data)))
    newline = data.find(b"\n", start - 1, start + (len(data) - start) // 4)
    if newline >= 0:
        return newline + 1
    begin = start
    while begin < min(len(data) - 1, start + 3) and data[begin] & 0xC0 == 0x80:
        begin += 1
    return begin if data[begin] & 0xC0 != 0x80 else start
