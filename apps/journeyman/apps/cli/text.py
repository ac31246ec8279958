"""Text for people: what models and commands wrote made safe for a terminal, and sizes, times and money in few words."""

import re
from datetime import datetime
from typing import Any, Final

_UNSAFE = re.compile(
    # C0 without tab and newline, DEL, C1; then what reorders or hides text; then halves of surrogate pairs.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_NAMES: Final = {"\r": "\\r", "\x07": "\\a", "\x08": "\\b"}


def visible(text: str) -> str:
    """The text with control characters, escape sequences and direction overrides shown instead of obeyed.

    Newlines and tabs stay; a Windows line end becomes a newline.
    """
    return _UNSAFE.sub(_show, text.replace("\r\n", "\n"))


def _show(match: re.Match[str]) -> str:
    character = match.group()
    if character in _NAMES:
        return _NAMES[character]
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str, limit: int = 200) -> str:
    """The text on one line, at most ``limit`` characters, safe for a terminal."""
    return shortened(" ".join(visible(text).split()), limit)


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def lines_of(text: str, limit: int | None = None) -> list[str]:
    """The text's lines, safe for a terminal; of more than ``limit`` the middle is left out, with a line that says so."""
    lines = visible(text).expandtabs(4).rstrip("\n").split("\n") if text.strip("\n") else []
    if limit is None or len(lines) <= limit:
        return lines
    head = limit // 2
    tail = max(limit - head - 1, 1)
    return [*lines[:head], f"… {counted(len(lines) - head - tail, 'line')} …", *lines[-tail:]]


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def counted(count: int, noun: str, plural: str | None = None, *, shown: str | None = None) -> str:
    """``1 file``, ``2 files``; ``plural`` where it is not the noun and an s, ``shown`` instead of the count's digits."""
    return f"{count if shown is None else shown} {noun if count == 1 else plural or noun + 's'}"


def number(count: int) -> str:
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1000:.1f} k" if count < 1_000_000 else f"{count / 1_000_000:.2f} M"


def money(value: Any) -> str:
    """US dollars from a number or a decimal string."""
    try:
        amount = float(value)
    except (TypeError, ValueError):
        return "$?"
    return f"${amount:.2f}" if amount == 0 or amount >= 0.1 else f"${amount:.4f}"


def moment(text: Any) -> datetime | None:
    """The API's time as a datetime, or None for what is not one."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def clock(text: Any) -> str:
    """Local wall-clock time of an API time: ``14:03:09``."""
    when = moment(text)
    return when.astimezone().strftime("%H:%M:%S") if when else "--:--:--"


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``15m``, ``2h``, ``1d`` or a sequence such as ``1h30m``. Raises ``ValueError``."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 15m, 2h or 1h30m")
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(amount) * units[unit] for amount, _, unit in re.findall(r"(\d+(\.\d+)?)([smhd])", text))
