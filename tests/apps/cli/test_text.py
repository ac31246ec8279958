import pytest

from journeyman.apps.cli.text import (
    counted,
    duration,
    lines_of,
    money,
    number,
    one_line,
    parse_duration,
    size,
    visible,
)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\a"),
        ("a\r\nb", "a\nb"),
        ("50%\r100%", "50%\\r100%"),
        ("\x9b31m", "\\x9b31m"),
        ("nul\x00", "nul\\x00"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("lone \ud800", "lone \ufffd"),
        ("grüße 漢字 🙂", "grüße 漢字 🙂"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(raw: str, shown: str) -> None:
    assert visible(raw) == shown
    assert visible(raw).isprintable() or set(visible(raw)) & {"\t", "\n"}


def test_lines_and_limits() -> None:
    assert one_line("a\n  b\x1b", 10) == "a b\\x1b"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
    assert lines_of("") == []
    assert lines_of("\n".join("abcdef"), 3) == ["a", "… 4 lines …", "f"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.31, "0.3 s"), (59.9, "59 s"), (61, "1 min 01 s"), (7260, "2 h 01 min"), (90000, "1 d 01 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_numbers_and_money() -> None:
    assert [size(5), size(2048), size(5 << 30)] == ["5 B", "2.0 KiB", "5.0 GiB"]
    assert [number(999), number(12_345), number(2_500_000)] == ["999", "12.3 k", "2.50 M"]
    assert [money("0"), money("0.0042"), money(1.5), money("x")] == ["$0.00", "$0.0042", "$1.50", "$?"]


def test_nouns_agree_with_their_counts() -> None:
    assert [counted(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert [counted(n, "memory", "memories") for n in (1, 3)] == ["1 memory", "3 memories"]
    assert counted(12_345, "token", shown=number(12_345)) == "12.3 k tokens"


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("1d", 86400)])
def test_durations_that_people_write(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1x", "-5", "1h 30m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)
